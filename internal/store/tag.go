package store

// Tags is the number of different tags that a Version can have.
const Tags = epochs

// Tagged returns a version that contains the tag, a number from 0 to Tags-1. Only Untagged with the
// same tag returns v. With another tag, the version seems to belong to another database, and Since
// returns ErrExpired. The tag 0 returns v. Search uses the rights of a caller as the tag, so that a
// watch cannot continue with other rights.
func (v Version) Tagged(tag int64) Version {
	epoch, seq := int64(v)/sequences, int64(v)%sequences
	return Version((1+(epoch-1+tag)%epochs)*sequences + seq)
}

// Untagged reverses Tagged: it returns the version to which the tag was added to get v.
func (v Version) Untagged(tag int64) Version { return v.Tagged(Tags - tag) }
