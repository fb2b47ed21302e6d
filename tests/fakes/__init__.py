"""Stand-ins for machines, engines and servers, shared by all folders of tests."""
