"""What a model's heads do: the survey, its sentences, where it is kept."""
