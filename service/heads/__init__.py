"""What a model's heads do: the survey, its sentences and its store."""
