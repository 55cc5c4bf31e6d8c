"""The files of a new project, as ``stepseven init`` writes them."""
