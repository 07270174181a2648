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

// A body is stored as JSON, in which fields are searched, or packed. Then its JSON is only the
// searchable part. The first byte of the packed form is its format.
const (
	// packedZstd is compressed; the JSON is null. Fields are searched in the decompressed body.
	packedZstd = 1
	// packedSealed is compressed and encrypted; the JSON is the metadata.
	packedSealed = 2
	// packedZlib is like packedZstd, in the format of MySQL's COMPRESS.
	packedZlib = 3
)

// packFrom is the minimum size of compressed bodies, in bytes.
const packFrom = 16 << 10

// noJSON is the JSON of a compressed body.
const noJSON = "null"

// secrets is the type whose bodies are encrypted if they have more than metadata.
var secrets = schema.GroupResource{Resource: "secrets"}

// Errors of bodies. They do not contain the body, which may be a secret.
var (
	errNoJSON = errors.New("body is not JSON, or too deep")
	errNoKey  = errors.New("there is no key to encrypt its data with")
)

// SealWith sets the keys for the data of Secrets. Before the call, Secrets with more than
// metadata are refused.
func (s *Store) SealWith(k *seal.Keys) { s.sealing.Store(k) }

// body returns the columns of a body as stored.
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

// pack returns the JSON of a body, and its packed form; nil: it is not packed.
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

// deepest is a depth of JSON that every database can read.
const deepest = 200

// shallow reports whether JSON is valid, and every database can read its depth. The database
// itself rejects deeper JSON.
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

// onlyMetadata returns a body with its metadata only. more is true if it has other parts.
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

// seal encrypts compressed data.
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

// unseal reverses seal.
func (d *database) unseal(packed []byte, identity ...string) ([]byte, error) {
	return d.sealing.Load().Open(packed[1:], identity...)
}

func sealed(packed []byte) bool { return len(packed) > 0 && packed[0] == packedSealed }

// bodyIdentity identifies the owner of a sealed body.
func bodyIdentity(r *Row) []string {
	return []string{"body", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, string(r.UID)}
}

// revisionIdentity identifies the owner of a sealed revision: a state of an object with a row's
// key.
func revisionIdentity(r *Row, object, id int64) []string {
	return []string{"revision", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, strconv.FormatInt(object, 10), strconv.FormatInt(id, 10)}
}

// unpack replaces the JSON in a row's body by the original body. If a sealed body cannot be
// decrypted, the metadata stays, and the mirror reads the Secret again.
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

// inflate decompresses data that is packed and not sealed.
func inflate(packed []byte) ([]byte, error) {
	switch packed[0] {
	case packedZstd:
		return decompress(packed[1:], nil)
	case packedZlib:
		if len(packed) < 5 {
			return nil, io.ErrUnexpectedEOF
		}
		z, err := zlib.NewReader(bytes.NewReader(packed[5:]))
		if err != nil {
			return nil, err
		}
		out, err := io.ReadAll(io.LimitReader(z, mostRecord))
		return out, errors.Join(err, z.Close())
	default:
		return nil, fmt.Errorf("it is packed in way %d, which is not known", packed[0])
	}
}

// deflate returns our format byte, followed by the format of MySQL's UNCOMPRESS.
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

// decoders is a pool of decoders, one for each concurrent reader. Creating one is costly.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostRecord))
	if err != nil {
		panic(err) // its options are constant
	}
	return d
}}

// decompress reverses compress.
func decompress(b, next []byte) ([]byte, error) {
	d := decoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // New makes nothing else
	if next != nil {
		if err := d.ResetWithOptions(nil, zstd.WithDecoderDictRaw(1, next)); err != nil {
			return nil, fmt.Errorf("use what followed as a dictionary: %w", err)
		}
	}
	out, err := d.DecodeAll(b, nil)
	// The dictionary differs each time.
	if next == nil || d.ResetWithOptions(nil, zstd.WithDecoderDictDelete()) == nil {
		decoders.Put(d)
	}
	if err != nil {
		return nil, fmt.Errorf("it cannot be decompressed: %w", err)
	}
	return out, nil
}
