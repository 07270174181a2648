// Command web is the workload of the lab's tests. It answers HTTP on :8080 with its hostname. `web
// get URL` prints the content of a URL.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		return serve()
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	default:
		return errors.New("usage: web [get URL]")
	}
}

// serve answers each HTTP request on :8080 with the hostname. It returns only with an error.
func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr:              ":8080",
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintln(w, name) // an error means that the client has disconnected
		}),
	}
	return server.ListenAndServe()
}

// get prints the content of a URL. A status other than 200 is an error.
func get(url string) error {
	client := &http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
