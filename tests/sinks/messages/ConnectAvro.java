import io.apicurio.registry.utils.converter.avro.AvroData;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/** Reads messages of Connect's JSON converter, one a line, and prints the schema and the bytes of its Avro converter. */
public class ConnectAvro {
    public static void main(String[] arguments) throws Exception {
        JsonConverter json = new JsonConverter();
        json.configure(Map.of("schemas.enable", "true", "replace.null.with.default", "false"), false);
        AvroData avro = new AvroData(1000);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line; (line = lines.readLine()) != null;) {
            SchemaAndValue message = json.toConnectData("topic", line.getBytes(StandardCharsets.UTF_8));
            Schema schema = avro.fromConnectSchema(message.schema());
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
            new GenericDatumWriter<Object>(schema).write(avro.fromConnectData(message.schema(), message.value()), encoder);
            encoder.flush();
            out.println(schema + "\t" + HexFormat.of().formatHex(bytes.toByteArray()));
        }
    }
}
