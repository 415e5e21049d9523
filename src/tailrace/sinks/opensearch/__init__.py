"""The sink `opensearch`: a document for each row, in OpenSearch or Elasticsearch."""

from tailrace.sinks.opensearch.options import OpenSearchOptions
from tailrace.sinks.opensearch.sink import OpenSearchSink

__all__ = ["OpenSearchOptions", "OpenSearchSink"]
