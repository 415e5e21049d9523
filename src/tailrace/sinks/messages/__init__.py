"""What sinks that publish messages share: which destination a change goes to, and what the message holds."""
