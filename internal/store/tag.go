package store

// Tags is the number of tags that a Version can have.
const Tags = epochs

// Tagged returns a version with a tag from 0 to Tags-1. Without knowledge of the tag, it looks
// like a version of another epoch. The tag 0 changes nothing.
func (v Version) Tagged(tag int64) Version {
	epoch, seq := int64(v)/sequences, int64(v)%sequences
	return Version((1+(epoch-1+tag)%epochs)*sequences + seq)
}

// Untagged returns the version that was given the tag to get v.
func (v Version) Untagged(tag int64) Version { return v.Tagged(Tags - tag) }
