package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"orrery.dev/orrery/internal/seal"
	"orrery.dev/orrery/internal/testenv"
)

// hush is a text in the data of Secrets. It must not be stored unencrypted anywhere.
const hush = "correct-horse-battery-staple"

func sealingKeys(t *testing.T, lines ...string) *seal.Keys {
	t.Helper()
	k, err := seal.Parse([]byte(strings.Join(lines, "\n")))
	check(t, err)
	return k
}

// secret returns a Secret with data.
func secret(namespace, name, version, data string) Row {
	r := pod("a", namespace, name, map[string]string{"app": "web"}, nil)
	r.Resource, r.Kind, r.ResourceVersion, r.UID = "secrets", "Secret", version, types.UID(namespace+"/"+name)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": map[string]string{"password": base64.StdEncoding.EncodeToString([]byte(data))},
		"metadata": map[string]any{"namespace": namespace, "name": name, "labels": r.Labels}, "stringData": map[string]string{"plain": data},
	})
	if err != nil {
		panic(err)
	}
	r.Body = body
	return r
}

func withKeys(t *testing.T, at string, keys *seal.Keys) *Store {
	t.Helper()
	s := openStore(t, at)
	s.SealWith(keys)
	return s
}

// secretBodies returns the bodies of all stored Secrets, by NAMESPACE/NAME.
func secretBodies(t *testing.T, s *Store) map[string]string {
	t.Helper()
	page, err := s.List(context.Background(), Query{Resource: "secrets"})
	check(t, err)
	out := map[string]string{}
	for _, r := range page.Rows {
		out[r.Namespace+"/"+r.Name] = string(r.Body)
	}
	return out
}

func everything(string, map[string]string) bool { return true }
func nothing(string, map[string]string) bool    { return false }

// hidden fails the test if a text, as it is or in base64, is in any column of any table, or in
// a file of an SQLite database. It also fails if the tables have no encrypted data.
func hidden(t *testing.T, s *Store, at string, texts ...string) {
	t.Helper()
	found := func(where string, b []byte) {
		for _, text := range texts {
			for _, form := range []string{text, base64.StdEncoding.EncodeToString([]byte(text))} {
				if bytes.Contains(b, []byte(form)) {
					t.Errorf("%s has %q", where, form)
				}
			}
		}
	}
	for _, table := range []string{"object", "body", "label", "type", "cluster", "served", "revision", "past", "epoch"} {
		n := 0
		check(t, each(t.Context(), s.db.read, "SELECT t.* FROM "+table+" t", func(rows *sql.Rows) error { //nolint:unqueryvet // whatever there is
			columns, err := rows.Columns()
			if err != nil {
				return err
			}
			values, into := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				return err
			}
			for i, v := range values {
				found(table+"."+columns[i], v)
				if table == "body" && columns[i] == "packed" && len(v) > 0 && v[0] == packedSealed || table == "revision" && columns[i] == "body" && sealed(v) {
					n++
				}
			}
			return nil
		}))
		if n == 0 && (table == "body" || table == "revision") {
			t.Errorf("nothing in %s is sealed: there was nothing to hide", table)
		}
	}
	if strings.Contains(at, "://") {
		return
	}
	files, err := filepath.Glob(filepath.Join(at, "*"))
	check(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		check(t, err)
		found(f, b)
	}
	if len(files) == 0 {
		t.Error("there are no files")
	}
}

// TestSecretsAreSealed: of a Secret, past or present, the database has nothing unencrypted but
// the metadata. With the key, all of it can be read, but only as the Secret that it belongs to.
func TestSecretsAreSealed(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := withKeys(t, at, sealingKeys(t, seal.New()))
		c := clocked(t, s)
		first, second := secret("x", "login", "1", hush+"-first"), secret("x", "login", "2", hush+"-second")
		gone, large := secret("x", "gone", "3", hush+"-gone"), secret("x", "large", "4", strings.Repeat(hush, 4000))
		bare := secret("x", "bare", "5", "")
		bare.Body = []byte(`{"metadata":{"namespace":"x","name":"bare"}}`)
		write(t, s, pod("a", "x", "web", nil, nil), first, gone, large, bare)
		before := c.now
		c.tick()
		write(t, s, second)
		check(t, s.Write(t.Context(), []Change{{Row: gone, Delete: true}}))
		c.tick()
		hidden(t, s, at, hush)
		want := map[string]string{"x/login": string(second.Body), "x/large": string(large.Body), "x/bare": string(bare.Body)}
		if diff := cmp.Diff(want, secretBodies(t, s)); diff != "" {
			t.Error(diff)
		}
		page, err := s.List(t.Context(), Query{Resource: "secrets", Names: []string{"login", "gone"}, At: before})
		check(t, err)
		if len(page.Rows) != 2 || string(page.Rows[0].Body) != string(gone.Body) || string(page.Rows[1].Body) != string(first.Body) {
			t.Errorf("what was is not what it was: %v", keys(page.Rows))
		}
		dead, err := s.Deleted(t.Context(), Query{Resource: "secrets"}, nil, 0, 10)
		check(t, err)
		if len(dead.Items) != 1 || string(dead.Items[0].Row.Body) != string(gone.Body) {
			t.Errorf("%d deleted", len(dead.Items))
		}
		rows, err := s.Rows(t.Context(), "a", secrets, true, Key{}, 10)
		check(t, err)
		if len(rows) != 3 || string(rows[2].Body) != string(second.Body) {
			t.Errorf("rows are %v", keys(rows))
		}
		for path, want := range map[string][]string{
			"data.password": {}, "type": {}, "stringData.plain": {}, "metadata.labels.app": {"a/x/large", "a/x/login"},
		} {
			value := map[string]string{"data.password": base64.StdEncoding.EncodeToString([]byte(hush + "-second")), "type": "Opaque", "stringData.plain": hush + "-second", "metadata.labels.app": "web"}[path]
			if diff := cmp.Diff(want, listed(t, s, Query{Resource: "secrets", Fields: []FieldRequirement{{Path: path, Operator: selection.Equals, Value: value}}})); diff != "" {
				t.Errorf("by %s: %s", path, diff)
			}
		}

		// A row that is moved to a namespace that another user may read cannot be decrypted.
		_, err = s.db.write.ExecContext(t.Context(), "UPDATE object SET namespace = 'mine' WHERE name = 'login'")
		check(t, err)
		if body := secretBodies(t, s)["mine/login"]; strings.Contains(body, `"data"`) || !strings.Contains(body, "metadata") {
			t.Errorf("it was moved, and is %q", body)
		}
		_, err = s.db.write.ExecContext(t.Context(), "UPDATE past SET namespace = 'mine' WHERE name = 'gone'")
		check(t, err)
		if _, err := s.Deleted(t.Context(), Query{Resource: "secrets"}, nil, 0, 10); !errors.Is(err, seal.ErrForeign) || !strings.Contains(err.Error(), "mine/gone") {
			t.Errorf("%v, want that it belongs to something else", err)
		}
	})
}

// TestSecretsWithoutAKey: a Secret that cannot be encrypted is stored without its data. The
// error does not contain the data. The other rows of the batch are stored.
func TestSecretsWithoutAKey(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		broken := secret("x", "broken", "1", "")
		broken.Body = []byte(`{"data":{"a":"` + hush)
		bare := secret("x", "bare", "1", "")
		bare.Body = []byte(`{"metadata":{"name":"bare"}}`)
		err := s.Write(t.Context(), []Change{{Row: secret("x", "login", "1", hush)}, {Row: broken}, {Row: bare}})
		if _, ok := errors.AsType[*RejectedError](err); !ok || strings.Contains(err.Error(), hush) || !strings.Contains(err.Error(), "x/login") || !strings.Contains(err.Error(), "x/broken") {
			t.Errorf("%v", err)
		}
		if diff := cmp.Diff([]string{"a/x/bare", "a/x/broken", "a/x/login"}, listed(t, s, Query{Resource: "secrets"})); diff != "" {
			t.Error(diff)
		}
		for name, body := range secretBodies(t, s) {
			if strings.Contains(body, hush) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte(hush))) {
				t.Errorf("%s has its data: %s", name, body)
			}
		}
	})
}

// TestKeyIsLost: without the key, the metadata of Secrets stays and no call fails. Secrets that
// are written again can be read with the new key.
func TestKeyIsLost(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := withKeys(t, at, sealingKeys(t, seal.New()))
		check(t, s.SaveType(t.Context(), Type{Cluster: "a", Resource: secrets, API: []byte(`{}`)}))
		epoch, err := s.Epoch(t.Context())
		check(t, err)
		write(t, s, secret("x", "one", "1", hush), secret("x", "two", "1", hush), secret("x", "gone", "1", hush))
		write(t, s, secret("x", "one", "2", hush+"!"))
		check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: secrets, Epoch: epoch, State: []byte("here")}}))
		check(t, s.Close())

		s = withKeys(t, at, sealingKeys(t, seal.New()))
		for name, body := range secretBodies(t, s) {
			if strings.Contains(body, `"data"`) || !strings.Contains(body, `"metadata"`) {
				t.Errorf("%s is %s", name, body)
			}
		}
		check(t, s.Write(t.Context(), []Change{{Row: secret("x", "gone", "1", ""), Delete: true}, {Row: secret("x", "two", "2", hush+"?")}}))
		lost, err := s.KeepData(t.Context(), "a", everything)
		check(t, err)
		if lost != 1 {
			t.Errorf("%d are lost, want the one that nobody has written since", lost)
		}
		state, err := s.Checkpoint(t.Context(), "a", secrets)
		check(t, err)
		if state != nil {
			t.Errorf("%s vouches for what was lost", state)
		}
		held(t, s)
		one, two := secret("x", "one", "2", hush+"!"), secret("x", "two", "2", hush+"?")
		write(t, s, one)
		if diff := cmp.Diff(map[string]string{"x/one": string(one.Body), "x/two": string(two.Body)}, secretBodies(t, s)); diff != "" {
			t.Error(diff)
		}
		if lost, err := s.KeepData(t.Context(), "a", everything); lost != 0 || err != nil {
			t.Errorf("%d, %v: nothing is lost any more", lost, err)
		}
		write(t, s, secret("x", "one", "3", hush))
		states, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: secrets, Namespace: "x", Name: "one"}, 0, 10)
		check(t, err)
		for _, r := range states.Items {
			if _, err := s.Revision(t.Context(), Object{Cluster: "a", Resource: secrets, Namespace: "x", Name: "one"}, r.Seq); err != nil {
				t.Error(err)
			}
		}
		held(t, s)
	})
}

// TestKeyIsRotated: an older key still decrypts its data. KeepData encrypts all data with the
// newest key, and then the older one is no longer needed.
func TestKeyIsRotated(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		first, second := seal.New(), seal.New()
		s := withKeys(t, at, sealingKeys(t, first))
		c := clocked(t, s)
		write(t, s, secret("x", "one", "1", hush), secret("x", "two", "1", hush), secret("x", "gone", "1", hush))
		c.tick()
		write(t, s, secret("x", "one", "2", hush+"!"))
		check(t, s.Write(t.Context(), []Change{{Row: secret("x", "gone", "1", ""), Delete: true}}))
		want := secretBodies(t, s)
		check(t, s.Close())

		s = withKeys(t, at, sealingKeys(t, second, first))
		if diff := cmp.Diff(want, secretBodies(t, s)); diff != "" {
			t.Error(diff)
		}
		lost, err := s.KeepData(t.Context(), "a", everything)
		if lost != 0 || err != nil {
			t.Error(lost, err)
		}
		check(t, s.Close())

		s = withKeys(t, at, sealingKeys(t, second))
		if diff := cmp.Diff(want, secretBodies(t, s)); diff != "" {
			t.Error(diff)
		}
		of := Object{Cluster: "a", Resource: secrets, Namespace: "x", Name: "one"}
		states, err := s.Revisions(t.Context(), of, 0, 10)
		check(t, err)
		if len(states.Items) != 2 {
			t.Fatalf("%d states", len(states.Items))
		}
		if r, err := s.Revision(t.Context(), of, states.Items[1].Seq); err != nil || string(r.Row.Body) != string(secret("x", "one", "1", hush).Body) {
			t.Errorf("%s, %v", r.Row.Body, err)
		}
		dead, err := s.Deleted(t.Context(), Query{Resource: "secrets"}, nil, 0, 10)
		if err != nil || len(dead.Items) != 1 || !strings.Contains(string(dead.Items[0].Row.Body), hush) {
			t.Errorf("%d, %v", len(dead.Items), err)
		}
		hidden(t, s, at, hush)
	})
}

// TestDataIsDropped: KeepData deletes the data and the history of the Secrets that keep
// rejects, and nothing else.
func TestDataIsDropped(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := withKeys(t, at, sealingKeys(t, seal.New()))
		stays, goes := secret("stays", "one", "2", hush+"!"), secret("goes", "one", "2", hush+"!")
		write(t, s, pod("a", "goes", "web", nil, nil), secret("stays", "one", "1", hush), secret("goes", "one", "1", hush), secret("goes", "gone", "1", hush), secret("stays", "gone", "1", hush))
		write(t, s, pod("a", "goes", "web", nil, map[string]any{"n": 1}), stays, goes)
		check(t, s.Write(t.Context(), []Change{{Row: secret("goes", "gone", "1", ""), Delete: true}, {Row: secret("stays", "gone", "1", ""), Delete: true}}))
		keep := func(namespace string, _ map[string]string) bool { return namespace == "stays" }
		for range 2 { // the second call has nothing to do
			if lost, err := s.KeepData(t.Context(), "a", keep); lost != 0 || err != nil {
				t.Error(lost, err)
			}
			held(t, s)
		}
		metadata, _, err := onlyMetadata(goes.Body)
		check(t, err)
		if diff := cmp.Diff(map[string]string{"stays/one": string(stays.Body), "goes/one": string(metadata)}, secretBodies(t, s)); diff != "" {
			t.Error(diff)
		}
		for namespace, want := range map[string]int{"stays": 2, "goes": 1} {
			states, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: secrets, Namespace: namespace, Name: "one"}, 0, 10)
			if err != nil || len(states.Items) != want {
				t.Errorf("%d states of %s, %v; want %d", len(states.Items), namespace, err, want)
			}
		}
		if diff := cmp.Diff([]string{"a/goes/web"}, listed(t, s, Query{Resource: "pods"})); diff != "" {
			t.Error(diff)
		}
		states, err := s.Revisions(t.Context(), Object{Cluster: "a", Resource: pods, Namespace: "goes", Name: "web"}, 0, 10)
		if err != nil || len(states.Items) != 2 {
			t.Errorf("%d states of a pod, %v", len(states.Items), err)
		}
		lost, err := s.KeepData(t.Context(), "a", nothing)
		if lost != 0 || err != nil {
			t.Error(lost, err)
		}
		for query, want := range map[string]int{
			"SELECT count(*) FROM body WHERE packed IS NOT NULL":                                                            0,
			"SELECT count(*) FROM revision r JOIN past p ON p.id = r.object WHERE p.namespace <> 'goes' OR p.name <> 'web'": 0,
			"SELECT count(*) FROM past": 1,
		} {
			var n int
			if err := s.db.read.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != want {
				t.Errorf("%s: %d, %v", query, n, err)
			}
		}
		held(t, s)
		// The Secrets are written again with their data, and their history continues.
		write(t, s, secret("goes", "one", "2", hush), secret("goes", "one", "3", hush+"!"))
		if body := secretBodies(t, s)["goes/one"]; !strings.Contains(body, hush) {
			t.Errorf("it is %s", body)
		}
		held(t, s)
		hidden(t, s, at, hush)
	})
}

// TestKilledWhileSealing kills a process at random moments while it encrypts all data with a
// new key. With both keys everything can be read, and after the work is complete with the new
// one alone.
func TestKilledWhileSealing(t *testing.T) {
	const many = 2500
	if dir := os.Getenv("STORE_TEST_SEALING"); dir != "" {
		s, err := Open(t.Context(), dir)
		check(t, err)
		s.SealWith(sealingKeys(t, os.Getenv("STORE_TEST_SECOND"), os.Getenv("STORE_TEST_FIRST")))
		fmt.Println("begins")
		_, err = s.KeepData(t.Context(), "a", everything)
		check(t, err)
		select {} // until it is killed
	}
	first, second, dir := seal.New(), seal.New(), t.TempDir()
	s := withKeys(t, dir, sealingKeys(t, first))
	rows := make([]Row, 0, many)
	for i := range many {
		rows = append(rows, secret("x", fmt.Sprintf("%05d", i), "1", hush))
	}
	write(t, s, rows...)
	want := secretBodies(t, s)
	check(t, s.Close())
	random := testenv.Rand(t)
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWhileSealing$")
		cmd.Env = append(os.Environ(), "STORE_TEST_SEALING="+dir, "STORE_TEST_FIRST="+first, "STORE_TEST_SECOND="+second)
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		_, err = out.Read(make([]byte, 6))
		check(t, err)
		<-time.After(time.Duration(random.IntN(60)) * time.Millisecond) // a random moment
		check(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		s := withKeys(t, dir, sealingKeys(t, second, first))
		checkIntegrity(t, s)
		if diff := cmp.Diff(want, secretBodies(t, s)); diff != "" {
			t.Error(diff[:min(len(diff), 1000)])
		}
		check(t, s.Close())
	}
	s = withKeys(t, dir, sealingKeys(t, second, first))
	if lost, err := s.KeepData(t.Context(), "a", everything); lost != 0 || err != nil {
		t.Error(lost, err)
	}
	s.SealWith(sealingKeys(t, second))
	if diff := cmp.Diff(want, secretBodies(t, s)); diff != "" {
		t.Error(diff[:min(len(diff), 1000)])
	}
}

// TestLargeBodies: large bodies are stored compressed and read unchanged, now and from the
// history. Their fields can be searched.
func TestLargeBodies(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		c := clocked(t, s)
		random := rand.New(rand.NewPCG(1, 2))
		noise := make([]byte, 32<<10)
		for i := range noise {
			noise[i] = byte(33 + random.IntN(90))
		}
		body := func(name, fill string) Row {
			return pod("a", "x", name, nil, map[string]any{"find": name, "yes": true, "number": 3, "fill": fill})
		}
		deep := body("deep", "")
		deep.Body = []byte(`{"spec":{"find":"deep","fill":"` + strings.Repeat("é", packFrom) + `","x":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}}`)
		awkward := body("awkward", "")
		awkward.Body = []byte(`{"spec":{"find":"awkward","yes":true,"number":3,"quote":"\"}[\\","fill":"` + strings.Repeat("é{\\u00e9", packFrom) + `"}}`)
		rows := []Row{body("small", "x"), body("large", strings.Repeat("large ", packFrom)), body("noise", string(noise)), awkward, deep}
		write(t, s, rows...)
		want, size := map[string]string{}, map[string]int{}
		for _, r := range rows {
			want[r.Name] = string(r.Body)
			size[r.Name] = len(r.Body)
		}
		got := func(q Query) map[string]string {
			t.Helper()
			page, err := s.List(t.Context(), q)
			check(t, err)
			out := map[string]string{}
			for _, r := range page.Rows {
				out[r.Name] = string(r.Body)
			}
			return out
		}
		if diff := cmp.Diff(want, got(Query{Resource: "pods"})); diff != "" {
			t.Error(diff[:min(len(diff), 1000)])
		}
		for name := range want {
			if name == "deep" && strings.HasPrefix(at, "mysql") {
				continue // MariaDB finds no field in deeply nested JSON
			}
			if diff := cmp.Diff([]string{"a/x/" + name}, listed(t, s, Query{Resource: "pods", Fields: []FieldRequirement{{Path: "spec.find", Operator: selection.Equals, Value: name}}})); diff != "" {
				t.Error(diff)
			}
		}
		all := []string{"a/x/awkward", "a/x/large", "a/x/noise", "a/x/small"}
		for path, value := range map[string]string{"spec.yes": "true", "spec.number": "3"} {
			if diff := cmp.Diff(all, listed(t, s, Query{Resource: "pods", Fields: []FieldRequirement{{Path: path, Operator: selection.Equals, Value: value}}})); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		if diff := cmp.Diff(all, listed(t, s, Query{Resource: "pods", Names: []string{"awkward", "large", "noise", "small"}, Fields: []FieldRequirement{
			{Path: "spec.none", Operator: selection.Equals, Value: ""}, {Path: "spec.number", Operator: selection.NotEquals, Value: "4"},
		}})); diff != "" {
			t.Error(diff)
		}
		text := "b.json"
		if strings.HasPrefix(at, "postgres") {
			text += "::text"
		}
		check(t, each(t.Context(), s.db.read, "SELECT o.name, length(coalesce(b.packed, '')), length("+text+") FROM object o JOIN body b ON b.object = o.id", func(rows *sql.Rows) error {
			var name string
			var packed, text int
			err := rows.Scan(&name, &packed, &text)
			compressed := s.db.dialect.packs() != 0 && (name == "large" || name == "awkward" || name == "noise")
			if (packed > 0) != compressed || compressed && (packed >= size[name] || name != "noise" && packed > size[name]/4 || text != len(noJSON)) {
				t.Errorf("%s of %d bytes takes %d packed and %d not", name, size[name], packed, text)
			}
			return err
		}))

		// One large body changes, and another one becomes small.
		before := c.now
		c.tick()
		changed := body("large", strings.Repeat("large ", packFrom)+"!")
		write(t, s, changed, body("awkward", "y"))
		if diff := cmp.Diff(map[string]string{"large": string(changed.Body), "awkward": string(body("awkward", "y").Body)}, got(Query{Resource: "pods", Names: []string{"large", "awkward"}})); diff != "" {
			t.Error(diff[:min(len(diff), 1000)])
		}
		if diff := cmp.Diff(want, got(Query{Resource: "pods", At: before})); diff != "" {
			t.Error(diff[:min(len(diff), 1000)])
		}
	})
}

// TestUnzlib: a body is decompressed whole, or is an error.
func TestUnzlib(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 100)
	packed, err := deflate(body)
	check(t, err)
	for most, whole := range map[int64]bool{101: true, 100: true, 99: false, 1: false} {
		if got, err := unzlib(packed[5:], most); (err == nil) != whole || whole && !bytes.Equal(got, body) || !whole && got != nil {
			t.Errorf("at most %d bytes: %q, %v", most, got, err)
		}
	}
	if got, err := unzlib(packed[5:len(packed)-1], 100); err == nil {
		t.Errorf("of data without its end: %q", got)
	}
}
