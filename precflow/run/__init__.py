"""Running a recipe: planning its stages, the store that keeps what is finished, the history, and progress on the screen."""
