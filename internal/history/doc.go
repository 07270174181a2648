// Package history says what differs between two states of an object, who changed it, and which of that is noise. It is pure.
package history
