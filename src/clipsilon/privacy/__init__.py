"""What a run reveals about one record, certified."""
