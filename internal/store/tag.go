package store

// Tags is the number of tags that a Version can have.
const Tags = epochs

// Tagged returns a version with a tag from 0 to Tags-1. It is a version of another epoch for whoever does not know the tag. The tag 0
// changes nothing.
func (v Version) Tagged(tag int64) Version {
	epoch, seq := int64(v)/sequences, int64(v)%sequences
	return Version((1+(epoch-1+tag)%epochs)*sequences + seq)
}

// Untagged returns the version of which v is the one with a tag.
func (v Version) Untagged(tag int64) Version { return v.Tagged(Tags - tag) }
