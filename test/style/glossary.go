package main

// concept is a row of the glossary in docs/style.md.
type concept struct {
	meaning string
	word    string // the one word for it
	note    string // shown in the table, not checked
	rule
}

// rule refuses words. A phrase is several words with blanks between them. Both are in lower case.
type rule struct {
	words  []string // refused in names that the code declares, and in text
	names  []string // refused in names only
	text   []string // refused in text only: comments, Markdown, the console's source
	except []string // phrases that contain a refused word and are fine, such as feature gate
}

// key names the rule in the file counts. It is empty if the rule refuses nothing.
func (r rule) key() string {
	if all := r.refused(); len(all) > 0 {
		return all[0]
	}
	return ""
}

// refused returns all words and phrases of the rule.
func (r rule) refused() []string {
	return append(append(append([]string(nil), r.words...), r.names...), r.text...)
}

// glossary gives each concept its word. docs/style.md shows it as a table, which `make words`
// writes.
var glossary = []concept{
	{meaning: "the API server that holds what users want", word: "hub"},
	{meaning: "a cluster that joined the fleet", word: "member, or cluster"},
	{meaning: "an object on the hub that a policy places", word: "template"},
	{meaning: "the object in a member that is rendered from a template", word: "copy"},
	{meaning: "a policy selects a template", word: "claim"},
	{
		meaning: "the clusters and replicas chosen for a template", word: "decision; the object that stores it is a binding",
		note: "`spec.placement`, `Placement` and `PlacementReview` are API names and stay",
	},
	{
		meaning: "replicas that a cluster can still take", word: "capacity, or free capacity",
		note: "a buffer or a column has space", rule: rule{words: []string{"room", "rooms", "roomy"}},
	},
	{meaning: "a directory of Go code", word: "package", note: "not room either", rule: rule{words: []string{"house"}}},
	{
		meaning: "the order in which work is done", word: "queue, priority, dispatch order",
		note: "in turn (one after the other) is fine",
		rule: rule{
			names:  []string{"turn", "turns", "rounds"},
			text:   []string{"the turn", "a turn", "its turn", "their turn", "whose turn", "each turn", "every turn", "any turn", "take turns", "all turns", "stand in line", "stands in line"},
			except: []string{"in turn"},
		},
	},
	{
		meaning: "a wait until inputs are complete; a check before a disruptive step; a workload that must be ready first",
		word:    "barrier; safety check; readiness check",
		rule: rule{
			words: []string{"gate", "gates", "gated"},
			except: []string{
				"feature gate", "feature gates", "readiness gate", "readiness gates", "scheduling gate", "scheduling gates", "scheduling gated",
			},
		},
	},
	{meaning: "the files of releases on the local disk", word: "release cache", rule: rule{words: []string{"shelf", "shelves"}}},
	{
		meaning: "the rows and clusters that a user may see", word: "visibility, scope",
		note: "a fence is only that of ClusterAccess or of the Lease (fencing token)", rule: rule{words: []string{"sight", "sights"}},
	},
	{
		meaning: "reading rows in order, page by page", word: "pagination; visit, for trees and schemas",
		rule: rule{words: []string{"walk", "walks", "walker", "walked", "walking"}, except: []string{"walk dir", "walk func"}},
	},
	{
		meaning: "an object that a template needs beside it", word: "dependency",
		note: "one that watches is a watcher",
		rule: rule{
			words:  []string{"follower", "followers"},
			names:  []string{"needs", "needing"},
			text:   []string{"its needs", "their needs", "the needs"},
			except: []string{"needs yes", "etcd follower", "etcd followers"},
		},
	},
	{
		meaning: "an object in a member that Orrery did not create", word: "unmanaged object",
		note: "a client without identity is unauthenticated", rule: rule{words: []string{"stranger", "strangers"}},
	},
	{meaning: "a policy that selects the same template", word: "competing policy", rule: rule{words: []string{"rival", "rivals"}}},
	{meaning: "a second object or mechanism that equals another", word: "duplicate", rule: rule{words: []string{"twin", "twins"}}},
	{
		meaning: "a deletion that was requested and is not done", word: "pending deletion",
		rule: rule{words: []string{"owed", "owe", "owes", "debt", "debts"}},
	},
	{
		meaning: "one part informs another", word: "report, notify, send; see, for a reader",
		rule: rule{
			words:  []string{"told", "tells", "teller", "tellers"},
			except: []string{"told apart", "tells apart", "tells them apart"},
		},
	},
	{
		meaning: "what a text or a value refers to", word: "is about, describes, refers to",
		rule: rule{
			words:  []string{"speaks", "speak"},
			except: []string{"speaks http", "speak http", "speaks tls", "speaks spdy", "speaks web socket", "speaks the protocol"},
		},
	},
	{meaning: "how an object is", word: "state, status", rule: rule{words: []string{"fares", "fare", "standing"}}},
	{meaning: "a first look at hosts or clusters", word: "inspection", rule: rule{words: []string{"survey", "surveys"}}},
	{
		meaning: "make right again what is broken", word: "repair; fix, for code",
		rule: rule{words: []string{"mend", "mends", "mended", "mending"}},
	},
	{meaning: "search in all words of an object", word: "full text", rule: rule{words: []string{"prose"}}},
	{meaning: "the store confirms that a version is complete", word: "confirm, cover", rule: rule{words: []string{"vouch", "vouches", "vouched", "vouching"}}},
	{meaning: "a table whose writes were given up", word: "abandoned; retry ends that", rule: rule{words: []string{"forsaken", "forsake", "pardon", "pardons", "pardoned"}}},
	{meaning: "a signal that is given once", word: "signal, done channel", rule: rule{words: []string{"latch", "latches"}}},
	{meaning: "something that has just begun", word: "new, recent, starting", rule: rule{words: []string{"young", "younger"}}},
	{meaning: "many users or rows at once", word: "load, many rows", rule: rule{words: []string{"crowd", "crowds", "crowded"}}},
	{meaning: "a request carries a token", word: "authenticated, with a token", rule: rule{words: []string{"bearing"}, text: []string{"token of the day"}}},
}

// plain has phrases that make a sentence a riddle, and what to write instead.
var plain = []concept{
	{word: "name the actor: the user, the client, the caller, the process", rule: rule{text: []string{"whoever", "who asks"}}},
	{word: "any, every, for all; or name the values", rule: rule{text: []string{"whatever", "whichever"}}},
	{word: "again; or create, list, start", rule: rule{words: []string{"anew"}}},
	{word: "a second sentence that begins with the noun", rule: rule{
		text: []string{"of which", "of whom"},
		except: []string{
			"all of which", "some of which", "most of which", "many of which", "none of which", "each of which", "both of which", "one of which", "two of which",
		},
	}},
	{word: "the noun: of the object, of the row", rule: rule{text: []string{"of what"}}},
	{word: "no; is not a …; is invalid", rule: rule{text: []string{"that is none", "is none of", "are none of", "than there is"}}},
	{word: "the verb: belongs to, comes from, is for", rule: rule{text: []string{"it is of", "is of a", "is of an", "is of the"}}},
	{word: "unknown; or who cannot know it, and why", rule: rule{text: []string{"nobody knows", "nobody can say", "nobody can tell", "nobody can know"}}},
	{word: "apply, reach, build", rule: rule{text: []string{"bring about", "brings about", "brought about"}}},
	{word: "admit, accept", rule: rule{text: []string{"let in", "lets in"}}},
	{word: "release", rule: rule{text: []string{"let go", "lets go"}}},
	{word: "record, remember, store", rule: rule{text: []string{"takes note", "take note"}}},
	{word: "conflicts with, prevents, blocks", rule: rule{text: []string{"in the way", "stands in the way", "stand in the way"}, except: []string{"in the way that", "in the way it"}}},
	{word: "skip, stop", rule: rule{words: []string{"forgo", "forgoes", "forgone"}}},
	{word: "do, finish, handle", rule: rule{text: []string{"makes good for", "make good for"}}},
}
