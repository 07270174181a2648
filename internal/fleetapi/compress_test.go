package fleetapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLargeAnswersAreCompressed: large answers are compressed for clients that accept it. A
// client can detect an aborted answer.
func TestLargeAnswersAreCompressed(t *testing.T) {
	text := bytes.Repeat([]byte("an object of the fleet, "), 20_000)
	server := httptest.NewServer(compressed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/small":
			fmt.Fprint(w, "{}")
		case "/broken":
			_, _ = w.Write(text)
			panic(http.ErrAbortHandler)
		default:
			_, _ = w.Write(text)
		}
	})))
	t.Cleanup(server.Close)
	for path, want := range map[string]string{"/small": "", "/large": "gzip", "/broken": "gzip"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := http.DefaultClient.Do(req)
		if path == "/broken" && err != nil {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Encoding"); got != want {
			t.Errorf("%s: %q", path, got)
		}
		body, broken := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if (broken != nil) != (path == "/broken") {
			t.Errorf("%s: %v after %d bytes", path, broken, len(body))
		}
		if path != "/large" {
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := io.ReadAll(z); err != nil || !bytes.Equal(plain, text) || len(body) > len(text)/10 {
			t.Errorf("%d bytes for %d, %v", len(body), len(text), err)
		}
	}
}
