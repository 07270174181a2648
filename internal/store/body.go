package store

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/seal"
)

// Formats of a packed body. The table body stores the body of an object as JSON, in which fields
// are searched. A large body is compressed, and the body of a Secret is encrypted. The result is in
// the column packed, whose first byte is the format. The JSON is then only what may be searched.
const (
	// packedZstd: the body is compressed, and the JSON column is null. Fields are searched in the
	// decompressed body.
	packedZstd = 1
	// packedSealed: the body of a Secret is compressed and encrypted. The JSON column has only
	// apiVersion, kind and metadata.
	packedSealed = 2
	// packedZlib: like packedZstd, but in the format of MySQL's function COMPRESS.
	packedZlib = 3
)

// packFrom is the size in bytes from which a body is compressed.
const packFrom = 16 << 10

// noJSON is the content of the JSON column for a compressed body.
const noJSON = "null"

// secrets is the type of Secrets. A body of that type is encrypted if it has more than metadata.
var secrets = schema.GroupResource{Resource: "secrets"}

// Errors of bodies. They do not contain the body, which may be a secret.
var (
	// errNoJSON: the body is not valid JSON, or nested too deeply.
	errNoJSON = errors.New("body is not JSON, or too deep")
	// errNoKey: a Secret has data, and the store has no key to encrypt the data.
	errNoKey = errors.New("there is no key to encrypt its data with")
)

// SealWith sets the keys that encrypt the data of Secrets. If k is nil, Secrets are stored without
// their data, and Write returns a RejectedError for each Secret with data. Data that is already
// stored does not change until KeepData encrypts it again.
func (s *Store) SealWith(k *seal.Keys) { s.sealing.Store(k) }

// body returns the values of a row's body for the table body: first those of dialect.bodyColumns,
// then the value of the column packed. The last value is nil if the body is not packed. Errors are
// those of pack and of dialect.body. The caller holds d.mu.
func (d *database) body(r *Row) ([]any, error) {
	text, packed, err := d.pack(r)
	if err != nil {
		return nil, err
	}
	columns, err := d.dialect.body(text)
	if packed == nil {
		return append(columns, nil), err
	}
	return append(columns, packed), err
}

// pack returns what the table body stores for a row: the JSON as text, and the value of the column
// packed. packed is nil if the body is stored as JSON only. For a compressed body the text is
// noJSON. For a Secret with data the text is its metadata, and packed is encrypted. The error is
// errNoKey if there is no key, and errNoJSON for a Secret that is not JSON. Other bodies that are
// not JSON are returned unchanged. The caller holds d.mu.
func (d *database) pack(r *Row) (text, packed []byte, err error) {
	if (schema.GroupResource{Group: r.Group, Resource: r.Resource}) == secrets {
		metadata, more, err := onlyMetadata(r.Body)
		if err != nil || !more {
			return r.Body, nil, err
		}
		packed, err := d.compressor.compress(r.Body, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("compress a body: %w", err)
		}
		packed, err = d.seal(packed, bodyIdentity(r)...)
		return metadata, packed, err
	}
	as := d.dialect.packs()
	if as == 0 || len(r.Body) < packFrom || !shallow(r.Body) || readable(string(r.Body)) != string(r.Body) {
		return r.Body, nil, nil
	}
	if as == packedZlib {
		packed, err = deflate(r.Body)
	} else {
		packed, err = d.compressor.compress(r.Body, nil)
		packed = append([]byte{packedZstd}, packed...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("compress a body: %w", err)
	}
	if len(packed) >= len(r.Body) {
		return r.Body, nil, nil
	}
	return []byte(noJSON), packed, nil
}

// deepest is the number of nested levels of JSON that every supported database can read.
const deepest = 200

// shallow reports whether b is valid JSON with at most deepest nested levels. Databases reject
// deeper JSON.
func shallow(b []byte) bool {
	if !json.Valid(b) {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case inString:
		case c == '{', c == '[':
			if depth++; depth > deepest {
				return false
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return true
}

// onlyMetadata returns a JSON object with only the apiVersion, kind and metadata of the body b of a
// Secret. more is true if b has other fields, such as data. The error is errNoJSON if b is not a
// JSON object.
func onlyMetadata(b []byte) (metadata []byte, more bool, err error) {
	var whole, kept map[string]json.RawMessage
	if json.Unmarshal(b, &whole) != nil {
		return nil, false, errNoJSON
	}
	kept = map[string]json.RawMessage{}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := whole[name]; ok {
			kept[name] = v
		}
	}
	if metadata, err = json.Marshal(kept); err != nil {
		return nil, false, errNoJSON
	}
	return metadata, len(kept) < len(whole), nil
}

// seal encrypts the compressed data of a Secret, and puts the byte packedSealed before it. identity
// names the object or revision with this data. Only unseal with the same identity decrypts the
// result. Without keys, the error is errNoKey.
func (d *database) seal(compressed []byte, identity ...string) ([]byte, error) {
	keys := d.sealing.Load()
	if keys == nil {
		return nil, errNoKey
	}
	sealed, err := keys.Seal(compressed, identity...)
	if err != nil {
		return nil, fmt.Errorf("encrypt a body: %w", err)
	}
	return append([]byte{packedSealed}, sealed...), nil
}

// unseal decrypts a result of seal. The data that it returns is still compressed. The error is
// seal.ErrKey if the key is missing. It is seal.ErrForeign if the data was altered, or encrypted
// with another identity.
func (d *database) unseal(packed []byte, identity ...string) ([]byte, error) {
	return d.sealing.Load().Open(packed[1:], identity...)
}

// sealed reports whether packed data, or only the beginning of it, is in the format packedSealed.
func sealed(packed []byte) bool { return len(packed) > 0 && packed[0] == packedSealed }

// bodyIdentity returns the identity with which seal encrypts the present body of a Secret: the
// cluster, type, namespace, name and UID of the row.
func bodyIdentity(r *Row) []string {
	return []string{"body", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, string(r.UID)}
}

// revisionIdentity returns the identity with which seal encrypts a revision, a past state of a
// Secret. r has the cluster, type, namespace and name. object is the id of the object in the
// database, and id that of the revision.
func revisionIdentity(r *Row, object, id int64) []string {
	return []string{"revision", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, strconv.FormatInt(object, 10), strconv.FormatInt(id, 10)}
}

// unpack replaces the JSON in r.Body by the original body, from the value of the column packed. If
// packed is empty, r.Body is already the original. If the body of a Secret is encrypted with an
// unknown key, or for another object, r.Body stays the metadata. This is no error, and the mirror
// reads the Secret from the cluster again. Any other body that cannot be unpacked is an errDamaged.
func (d *database) unpack(r *Row, packed []byte) (err error) {
	if len(packed) == 0 {
		return nil
	}
	var body []byte
	switch packed[0] {
	case packedSealed:
		if body, err = d.unseal(packed, bodyIdentity(r)...); errors.Is(err, seal.ErrKey) || errors.Is(err, seal.ErrForeign) {
			return nil
		}
		if err == nil {
			body, err = decompress(body, nil)
		}
	default:
		body, err = inflate(packed)
	}
	if err != nil {
		return fmt.Errorf("%w: body of %s/%s in cluster %s: %w", errDamaged, r.Namespace, r.Name, r.Cluster, err)
	}
	r.Body = body
	return nil
}

// inflate decompresses a body in the format packedZstd or packedZlib. packed must not be empty.
// Another format is an error, and so is a body of more than mostRecord bytes.
func inflate(packed []byte) ([]byte, error) {
	switch packed[0] {
	case packedZstd:
		return decompress(packed[1:], nil)
	case packedZlib:
		if len(packed) < 5 {
			return nil, io.ErrUnexpectedEOF
		}
		return unzlib(packed[5:], mostRecord)
	default:
		return nil, fmt.Errorf("it is packed in way %d, which is not known", packed[0])
	}
}

// unzlib decompresses zlib data. A result of more than most bytes is an error.
func unzlib(b []byte, most int64) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(z, most+1))
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	if int64(len(out)) > most {
		return nil, fmt.Errorf("it has more than %d bytes", most)
	}
	return out, nil
}

// deflate returns a body in the format packedZlib: the byte packedZlib, and then what MySQL's
// function UNCOMPRESS reads.
func deflate(b []byte) ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte(packedZlib)
	out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))) //nolint:gosec // a body is far smaller
	z, err := zlib.NewWriterLevel(&out, zlib.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(b)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	return slices.Clip(out.Bytes()), nil
}

// decoders is a pool of zstd decoders without a dictionary, one for each concurrent reader.
// Creating a decoder is costly.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostRecord))
	if err != nil {
		panic(err) // its options are constant
	}
	return d
}}

// decompress reverses compressor.compress. next is the same record that compress received as next,
// the state that followed; nil for a record that was compressed alone. It may be called from
// several goroutines.
func decompress(b, next []byte) ([]byte, error) {
	d := decoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // New makes nothing else
	if next != nil {
		if err := d.ResetWithOptions(nil, zstd.WithDecoderDictRaw(1, next)); err != nil {
			return nil, fmt.Errorf("use what followed as a dictionary: %w", err)
		}
	}
	out, err := d.DecodeAll(b, nil)
	// The decoder returns to the pool without its dictionary, because each record has another one.
	if next == nil || d.ResetWithOptions(nil, zstd.WithDecoderDictDelete()) == nil {
		decoders.Put(d)
	}
	if err != nil {
		return nil, fmt.Errorf("it cannot be decompressed: %w", err)
	}
	return out, nil
}
