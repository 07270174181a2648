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

// A body is kept as JSON, in which fields are looked for, or packed: then its JSON is what may be searched of it. What is packed
// says in its first byte how.
const (
	// packedZstd: compressed, the JSON is null. Fields are looked for in what it decompresses to.
	packedZstd = 1
	// packedSealed: compressed and encrypted, the JSON is the metadata.
	packedSealed = 2
	// packedZlib: as packedZstd, as MySQL's COMPRESS would do it.
	packedZlib = 3
)

// packFrom is how long a body must be to be compressed, in bytes.
const packFrom = 16 << 10

// noJSON is the JSON of a body that is compressed.
const noJSON = "null"

// secrets are the type whose bodies are sealed if they have more than metadata.
var secrets = schema.GroupResource{Resource: "secrets"}

// Errors of bodies, of which they say nothing: it may be a secret.
var (
	errNoJSON = errors.New("body is not JSON, or too deep")
	errNoKey  = errors.New("there is no key to encrypt its data with")
)

// SealWith says with which keys the data of Secrets is kept from now on. Before that, Secrets that have more than metadata are refused.
func (s *Store) SealWith(k *seal.Keys) { s.sealing.Store(k) }

// columns of a body, as they are stored.
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

// pack returns the JSON of a body, and what is packed of it; nil: nothing is.
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

// deepest is how deep JSON may be that every database reads.
const deepest = 200

// shallow says whether JSON is valid, and not so deep that a database could not read it: that is left to the database to judge.
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

// onlyMetadata is a body without what is beside its metadata, and whether there is anything.
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

// seal packs what is compressed.
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

// unseal is the reverse of seal.
func (d *database) unseal(packed []byte, identity ...string) ([]byte, error) {
	return d.sealing.Load().Open(packed[1:], identity...)
}

func sealed(packed []byte) bool { return len(packed) > 0 && packed[0] == packedSealed }

// bodyIdentity is what a sealed body belongs to.
func bodyIdentity(r *Row) []string {
	return []string{"body", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, string(r.UID)}
}

// revisionIdentity is what a sealed revision belongs to: a state of an object of a row's key.
func revisionIdentity(r *Row, object, id int64) []string {
	return []string{"revision", r.Cluster, r.Group, r.Resource, r.Namespace, r.Name, strconv.FormatInt(object, 10), strconv.FormatInt(id, 10)}
}

// unpack makes the body of a row, which is its JSON, what it was when it was written. Of one that is sealed and does not open the
// metadata is left: the mirror reads it again.
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

// inflate decompresses what is packed and not sealed.
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

// deflate is what MySQL's UNCOMPRESS reads, after a byte of ours.
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

// decoders are those of what is compressed by itself, one for each who reads at once; a decoder is costly to make.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(mostRecord))
	if err != nil {
		panic(err) // its options are constant
	}
	return d
}}

// decompress is the reverse of compress.
func decompress(b, next []byte) ([]byte, error) {
	d := decoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // New makes nothing else
	if next != nil {
		if err := d.ResetWithOptions(nil, zstd.WithDecoderDictRaw(1, next)); err != nil {
			return nil, fmt.Errorf("use what followed as a dictionary: %w", err)
		}
	}
	out, err := d.DecodeAll(b, nil)
	if next == nil || d.ResetWithOptions(nil, zstd.WithDecoderDictDelete()) == nil { // the dictionary is another each time
		decoders.Put(d)
	}
	if err != nil {
		return nil, fmt.Errorf("it cannot be decompressed: %w", err)
	}
	return out, nil
}
