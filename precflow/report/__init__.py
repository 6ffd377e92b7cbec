"""One typed model of a run (`model`), and everything that shows it: page, Markdown, JSON, JUnit, CSV, terminal."""
