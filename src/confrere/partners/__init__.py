"""Choose partners: transfer loss, influence, similarity, clusters and profiles, with their table and page."""
