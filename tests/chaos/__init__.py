"""Campaigns that attack the software for minutes; the suite runs the short form of each."""
