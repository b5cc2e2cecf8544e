"""Reports: what people and programs are told about results. Nothing here knows a contract's family."""
