"""The gate: a policy of rules applied to run folders, and the verdict as JUnit XML, Markdown and JSON."""
