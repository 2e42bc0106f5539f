"""Steps of the schema, oldest first in `versions/`. A step that has been released is never changed."""
