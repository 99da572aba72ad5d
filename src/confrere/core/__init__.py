"""The vocabulary: params, model, custody, protocols, parcel, events, metrics, seeds, registry, errors."""
