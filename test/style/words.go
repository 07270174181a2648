package main

import (
	"slices"
	"strings"
	"unicode"
)

// token is a word of a text or of a name, in lower case. A token without a word ends phrases: it
// stands for punctuation, code or a path.
type token struct {
	word string
	line int
}

// pattern is a refused phrase, or one that is fine.
type pattern struct {
	words  []string
	key    string // of its rule
	except bool
}

// matcher finds phrases. It keeps them by their first word, the longest first.
type matcher map[string][]pattern

// hit is a refused phrase that was found.
type hit struct {
	key, phrase string
	line        int
}

// matchers returns the matcher for names and the one for text.
func matchers(concepts ...concept) (names, text matcher) {
	names, text = matcher{}, matcher{}
	for _, c := range concepts {
		names.add(c.key(), false, c.words...)
		names.add(c.key(), false, c.names...)
		names.add(c.key(), true, c.except...)
		text.add(c.key(), false, c.words...)
		text.add(c.key(), false, c.text...)
		text.add(c.key(), true, c.except...)
	}
	return names, text
}

func (m matcher) add(key string, except bool, phrases ...string) {
	for _, phrase := range phrases {
		words := strings.Fields(phrase)
		m[words[0]] = append(m[words[0]], pattern{words: words, key: key, except: except})
		slices.SortStableFunc(m[words[0]], func(a, b pattern) int { return len(b.words) - len(a.words) })
	}
}

// find returns the refused phrases among tokens, in order. Of phrases of one rule that overlap,
// the first and longest counts. One that lies within a phrase that is fine does not count.
func (m matcher) find(tokens []token) (hits []hit) {
	// By rule: the end of the last phrase that is fine, and of the last hit.
	fine, last := map[string]int{}, map[string]int{}
	for i := range tokens {
		for _, p := range m.at(tokens, i) {
			if p.except {
				fine[p.key] = max(fine[p.key], i+len(p.words))
			}
		}
		for _, p := range m.at(tokens, i) {
			if end := i + len(p.words); !p.except && fine[p.key] < end && last[p.key] <= i {
				hits = append(hits, hit{key: p.key, phrase: strings.Join(p.words, " "), line: tokens[i].line})
				last[p.key] = end
			}
		}
	}
	return hits
}

// at returns the patterns that begin at an index.
func (m matcher) at(tokens []token, i int) (found []pattern) {
	for _, p := range m[tokens[i].word] {
		if i+len(p.words) <= len(tokens) && slices.EqualFunc(p.words, tokens[i:i+len(p.words)], func(w string, t token) bool { return w == t.word }) {
			found = append(found, p)
		}
	}
	return found
}

// textTokens splits a line of text. A word has only letters, and only its first may be upper case.
// A name of the code, a path or a version is one token without a word.
func textTokens(tokens []token, text string, line int) []token {
	stop := token{line: line}
	for i, runes := 0, []rune(text); i < len(runes); {
		if !isWord(runes[i]) {
			if !unicode.IsSpace(runes[i]) && !strings.ContainsRune("-'’*", runes[i]) {
				tokens = append(tokens, stop)
			}
			i++
			continue
		}
		start := i
		for i < len(runes) && (isWord(runes[i]) || strings.ContainsRune("./:@", runes[i]) && i+1 < len(runes) && isWord(runes[i+1])) {
			i++
		}
		if word := runes[start:i]; isPlain(word) {
			tokens = append(tokens, token{word: strings.ToLower(string(word)), line: line})
		} else {
			tokens = append(tokens, stop)
		}
	}
	return tokens
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// isPlain reports whether a word is English and not a name of the code.
func isPlain(word []rune) bool {
	for i, r := range word {
		if !unicode.IsLetter(r) || i > 0 && unicode.IsUpper(r) {
			return false
		}
	}
	return true
}

// nameTokens splits a name as Go writes it: maxRetries is max, retries.
func nameTokens(name string, line int) (tokens []token) {
	runes := []rune(name)
	start := 0
	cut := func(end int) {
		if end > start {
			tokens = append(tokens, token{word: strings.ToLower(string(runes[start:end])), line: line})
		}
		start = end
	}
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			cut(i)
			start = i + 1
		case unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			cut(i)
		}
	}
	cut(len(runes))
	return tokens
}

// withoutCode blanks what a line has between backticks.
func withoutCode(line string) string {
	parts := strings.Split(line, "`")
	for i := 1; i+1 < len(parts); i += 2 {
		parts[i] = "."
	}
	return strings.Join(parts, "`")
}
