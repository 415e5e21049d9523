import java.math.BigDecimal;
import java.sql.*;
import java.util.Properties;

/** Acts like a BI tool: reads metadata, prepares statements, fetches in parts. Prints the results. */
public class Jdbc {
  static void print(ResultSet rows, String... columns) throws SQLException {
    try (rows) {
      while (rows.next()) {
        StringBuilder line = new StringBuilder("row");
        for (String column : columns) line.append(" ").append(rows.getString(column));
        System.out.println(line);
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Properties properties = new Properties();
    properties.put("user", args.length > 2 ? args[2] : "reader");
    properties.put("preferQueryMode", args[1]);
    try (Connection c = DriverManager.getConnection(args[0], properties)) {
      DatabaseMetaData m = c.getMetaData();
      try (ResultSet r = m.getTables(null, "public", "%", new String[] {"TABLE"})) {
        while (r.next()) System.out.println("table " + r.getString("TABLE_NAME") + " " + r.getString("REMARKS"));
      }
      try (ResultSet r = m.getColumns(null, "public", "items", "%")) {
        while (r.next()) System.out.println("column " + r.getString("COLUMN_NAME") + " " + r.getString("TYPE_NAME"));
      }
      try (ResultSet r = m.getPrimaryKeys(null, "public", "items")) {
        while (r.next()) System.out.println("key " + r.getString("COLUMN_NAME") + " " + r.getInt("KEY_SEQ"));
      }
      System.out.println("keywords " + m.getSQLKeywords());
      for (String table : new String[] {"kinds", "items", "Mixed Case", "empty"}) {
        print(m.getColumns(null, null, table, "%"), "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "DECIMAL_DIGITS",
            "NULLABLE", "COLUMN_DEF", "ORDINAL_POSITION", "IS_AUTOINCREMENT");
        print(m.getPrimaryKeys(null, null, table), "TABLE_SCHEM", "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
        print(m.getIndexInfo(null, null, table, true, false), "NON_UNIQUE", "INDEX_NAME", "TYPE", "ORDINAL_POSITION",
            "COLUMN_NAME", "ASC_OR_DESC", "FILTER_CONDITION");
        print(m.getBestRowIdentifier(null, null, table, DatabaseMetaData.bestRowSession, true), "COLUMN_NAME", "TYPE_NAME");
      }
      if (args.length > 2) return;
      // Often enough that the driver switches to named statements and binary results.
      try (PreparedStatement s = c.prepareStatement("SELECT amount, placed_at, note FROM orders WHERE id = ? AND note LIKE ?")) {
        for (int i = 0; i < 7; i++) {
          s.setLong(1, 5);
          s.setString(2, "note%");
          try (ResultSet r = s.executeQuery()) {
            r.next();
            if (i == 0 || i == 6)
              System.out.println(r.getBigDecimal(1) + " " + r.getTimestamp(2).toInstant() + " " + r.getString(3));
          }
        }
      }
      try (PreparedStatement s = c.prepareStatement("SELECT count(*) FROM orders WHERE amount > ? AND id = ANY(?)")) {
        s.setBigDecimal(1, new BigDecimal("10.5"));
        s.setArray(2, c.createArrayOf("bigint", new Object[] {1L, 2L, 3L}));
        try (ResultSet r = s.executeQuery()) {
          r.next();
          System.out.println("count " + r.getInt(1));
        }
      }
      c.setAutoCommit(false);
      try (Statement s = c.createStatement()) {
        s.setFetchSize(100);
        int rows = 0;
        try (ResultSet r = s.executeQuery("SELECT a.id FROM orders a, customers b")) {
          while (r.next()) rows++;
        }
        System.out.println("fetched " + rows);
        s.executeQuery("SELECT * FROM nowhere");
      } catch (SQLException e) {
        System.out.println(e.getSQLState());
      }
    }
  }
}
