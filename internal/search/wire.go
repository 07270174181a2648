package search

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	goyaml "go.yaml.in/yaml/v2"
	"google.golang.org/protobuf/encoding/protowire"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	sigsjson "sigs.k8s.io/json"
)

// wire is an encoding of answers: JSON, YAML, CBOR or protobuf. Its methods convert from JSON, in
// which objects are stored.
type wire int

const (
	inJSON wire = iota
	inYAML
	inCBOR
	inProtobuf      // protobuf: drops fields that the Go types of this program do not have
	inWholeProtobuf // protobuf: returns a lossError for an object with such fields
)

const (
	mediaJSON         = "application/json"
	mediaYAML         = "application/yaml"
	mediaCBOR         = "application/cbor"
	mediaCBORSequence = "application/cbor-seq"
	mediaProtobuf     = "application/vnd.kubernetes.protobuf"
)

// mediaType returns the media type of an answer that is not a watch.
func (w wire) mediaType() string {
	return [...]string{mediaJSON, mediaYAML, mediaCBOR, mediaProtobuf, mediaProtobuf}[w]
}

// streamType returns the media type of watches; "" for YAML, in which there are no watches.
func (w wire) streamType() string {
	const inProtobuf = mediaProtobuf + ";stream=watch"
	return [...]string{mediaJSON, "", mediaCBORSequence, inProtobuf, inProtobuf}[w]
}

// protobuf reports whether the encoding is protobuf: inProtobuf or inWholeProtobuf.
func (w wire) protobuf() bool { return w == inProtobuf || w == inWholeProtobuf }

// known has the Go types of the kinds that can be encoded in protobuf: those of Kubernetes.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubescheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, metav1.AddMetaToScheme, metav1beta1.AddMetaToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}()

// protobufs encodes objects of known types in protobuf.
var protobufs = protobuf.NewSerializer(known, known)

// marshaler is implemented by Go types that have a protobuf encoding.
type marshaler interface{ Marshal() ([]byte, error) }

// can reports whether objects of a kind can be encoded in the form. Only protobuf has limits: it
// can encode PartialObjectMetadata, and objects of the kinds in known, but no tables.
func (f form) can(gvk schema.GroupVersionKind) bool {
	if !f.wire.protobuf() || f.as == asPartial {
		return true
	}
	if f.as == asTable {
		return false
	}
	o, err := known.New(gvk)
	_, ok := o.(marshaler)
	return err == nil && ok
}

// lossError means that protobuf would drop fields of an object, because this program's Go type does
// not have them: perhaps a newer Kubernetes added them. A client that writes back what it read
// would then delete the fields. Only inWholeProtobuf returns it; another encoding can represent the
// object.
type lossError struct{ error }

// typed decodes raw, which is the JSON of an object, into the Go type of its kind, for protobuf. A
// kind that is not in known is an error. Unknown fields are dropped by inProtobuf, and are an error
// of inWholeProtobuf. All errors of inWholeProtobuf are lossErrors.
func (w wire) typed(raw []byte) (o runtime.Object, err error) {
	var t metav1.TypeMeta
	if err = json.Unmarshal(raw, &t); err == nil {
		o, err = known.New(t.GroupVersionKind())
	}
	switch {
	case err != nil:
	case w == inWholeProtobuf:
		var lost []error
		lost, err = sigsjson.UnmarshalStrict(raw, o, sigsjson.DisallowUnknownFields)
		err = errors.Join(append(lost, err)...)
	default:
		err = sigsjson.UnmarshalCaseSensitivePreserveInts(raw, o)
	}
	if w == inWholeProtobuf && err != nil {
		return nil, lossError{err}
	}
	return o, err
}

// valueOf parses JSON into maps, slices and scalars, with int64 for integers, to be encoded in YAML
// or CBOR. JSON must not be parsed as YAML: control characters and the line breaks of Unicode are
// valid in JSON, but not in YAML.
func valueOf(raw []byte) (value any, err error) {
	err = utiljson.Unmarshal(raw, &value)
	return value, err
}

// document encodes one object, given as JSON, as a whole document: the body of an answer. For JSON
// the result is raw itself. A lossError means that only another encoding can represent the object.
func (w wire) document(raw []byte) ([]byte, error) {
	switch w {
	case inYAML:
		value, err := valueOf(raw)
		if err != nil {
			return nil, err
		}
		return goyaml.Marshal(value)
	case inCBOR:
		item, err := cborOf(raw)
		return slices.Concat(selfDescribed, item), err
	case inProtobuf, inWholeProtobuf:
		o, err := w.typed(raw)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		err = protobufs.Encode(o, &out)
		return out.Bytes(), err
	default:
		return raw, nil
	}
}

// answer writes an object as the body of an answer, with its Content-Type. If it returns an error,
// nothing was written: the object cannot be encoded (encodingError), or only in another encoding
// (lossError). An error of the connection is ignored.
func (w wire) answer(to http.ResponseWriter, object any) error {
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	body, err := w.document(raw)
	if err != nil {
		return w.failed(err)
	}
	to.Header().Set("Content-Type", w.mediaType())
	_, _ = to.Write(body) // an error means that the client has disconnected
	return nil
}

// events returns a function that encodes events of a watch and writes them to the stream. In JSON
// each ends with a newline. In protobuf its length (4 bytes, big-endian) precedes it. The function
// returns an encodingError, a lossError or the error of the stream.
func (w wire) events(to io.Writer) func(kind apiwatch.EventType, object any) error {
	return func(kind apiwatch.EventType, object any) error {
		event, err := w.event(kind, object)
		if err != nil {
			return err
		}
		if w == inJSON {
			event = append(event, '\n')
		}
		if w.protobuf() { // protobuf does not mark the end of an event
			event = slices.Concat(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event) //nolint:gosec // no object is of 4 GB
		}
		_, err = to.Write(event)
		return err
	}
}

// event encodes one event of a watch, without the newline or length that separates events in a
// stream. The error is an encodingError, or a lossError if another encoding can represent the
// object.
func (w wire) event(kind apiwatch.EventType, object any) (event []byte, err error) {
	defer func() { err = w.failed(err) }()
	raw, err := marshal(object)
	if err != nil {
		return nil, err
	}
	if w == inJSON {
		return slices.Concat([]byte(`{"type":"`+kind+`","object":`), raw, []byte("}")), nil
	}
	if w == inCBOR {
		value, err := valueOf(raw)
		if err != nil {
			return nil, err
		}
		event, err := direct.Marshal(map[string]any{"type": string(kind), "object": value})
		return slices.Concat(selfDescribed, event), err
	}
	if raw, err = w.document(raw); err != nil {
		return nil, err
	}
	return (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}).Marshal()
}

// encodingError means that an object cannot be encoded in the form that the client accepts. It is
// not an error of the connection.
type encodingError struct{ error }

func (e encodingError) Unwrap() error { return e.error }

// failed returns an encodingError with err and the media type. nil and a lossError are returned
// unchanged.
func (w wire) failed(err error) error {
	if _, lost := errors.AsType[lossError](err); err == nil || lost {
		return err // for a lossError, the caller tries another encoding
	}
	return encodingError{fmt.Errorf("encode in %s: %w", w.mediaType(), err)}
}

// item encodes one item of a list, given as JSON, in the form that listing.item takes. For JSON
// that is raw itself, and for YAML a list of one item. The error is an encodingError, or a
// lossError if another encoding can represent the object.
func (w wire) item(raw []byte) (item []byte, err error) {
	switch w {
	// The item is encoded as a list of one item, so that its lines need no further indentation.
	// Only the emitter of YAML knows which lines belong to a text and must not be indented.
	case inYAML:
		var value any
		if value, err = valueOf(raw); err == nil {
			item, err = goyaml.Marshal([]any{value})
		}
	case inCBOR:
		item, err = cborOf(raw)
	case inProtobuf, inWholeProtobuf:
		var o runtime.Object
		if o, err = w.typed(raw); err == nil {
			m, ok := o.(marshaler)
			if !ok {
				return nil, w.failed(fmt.Errorf("%T has none", o))
			}
			item, err = m.Marshal()
		}
	default:
		item = raw
	}
	return item, w.failed(err)
}

// listing writes a list to an answer, item by item. begin is called once, then item for each result
// of wire.item, then end once. After an error the list is incomplete.
type listing interface {
	// begin writes the fields of a list except metadata and the items. items is the name of the
	// field for the items.
	begin(list map[string]any, items string) error
	// item writes one item. In protobuf it returns errLongInProtobuf if the items have more than
	// mostInProtobuf bytes together.
	item(encoded []byte) error
	// end writes the remaining fields. metadata must be a metav1.ListMeta. In protobuf any other
	// field is an error.
	end(fields map[string]any) error
}

// listing returns the listing that writes a list in the encoding to out. In protobuf nothing is
// written before end, because a list begins with its length.
func (w wire) listing(out *bufio.Writer) listing {
	switch w {
	case inYAML:
		return &yamlList{out: out}
	case inCBOR:
		return &cborList{out: out}
	case inProtobuf, inWholeProtobuf:
		return &protobufList{out: out}
	default:
		return &jsonList{out: out}
	}
}

type jsonList struct {
	out       *bufio.Writer
	separator string
}

func (l *jsonList) begin(list map[string]any, items string) error {
	head, err := json.Marshal(list)
	if err != nil {
		return err
	}
	// Write the fields of the list without the closing brace, because the items follow.
	_, err = fmt.Fprintf(l.out, `%s,%q:[`, head[:len(head)-1], items)
	return err
}

func (l *jsonList) item(encoded []byte) error {
	if _, err := l.out.WriteString(l.separator); err != nil {
		return err
	}
	l.separator = ","
	_, err := l.out.Write(encoded)
	return err
}

func (l *jsonList) end(fields map[string]any) error {
	last, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "],%s", last[1:])
	return err
}

type yamlList struct {
	out   *bufio.Writer
	items string
	begun bool
}

func (l *yamlList) begin(list map[string]any, items string) error {
	l.items = items
	return l.fields(list)
}

func (l *yamlList) fields(fields map[string]any) error {
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	text, err := inYAML.document(raw)
	if err != nil {
		return err
	}
	_, err = l.out.Write(text)
	return err
}

func (l *yamlList) item(encoded []byte) error {
	if !l.begun {
		l.begun = true
		if _, err := fmt.Fprintf(l.out, "%s:\n", l.items); err != nil {
			return err
		}
	}
	_, err := l.out.Write(encoded)
	return err
}

func (l *yamlList) end(fields map[string]any) error {
	if !l.begun {
		fields = maps.Clone(fields)
		fields[l.items] = []any{}
	}
	return l.fields(fields)
}

// selfDescribed is the tag of self-described CBOR (RFC 8949). Documents and events in CBOR begin
// with it.
var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

// The first bytes of maps and lists of indefinite length in CBOR, and the byte that ends them.
const (
	cborMap   = 0xbf
	cborArray = 0x9f
	cborBreak = 0xff
)

// cborOf converts JSON to CBOR, without the tag selfDescribed.
func cborOf(raw []byte) ([]byte, error) {
	value, err := valueOf(raw)
	if err != nil {
		return nil, err
	}
	return direct.Marshal(value)
}

type cborList struct{ out *bufio.Writer }

func (l *cborList) begin(list map[string]any, items string) error {
	if _, err := l.out.Write(append(slices.Clone(selfDescribed), cborMap)); err != nil {
		return err
	}
	if err := l.fields(list); err != nil {
		return err
	}
	name, err := direct.Marshal(items)
	if err != nil {
		return err
	}
	_, err = l.out.Write(append(name, cborArray))
	return err
}

func (l *cborList) fields(fields map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		// Values go through JSON, for its rules about omitted fields, times and quantities.
		raw, err := json.Marshal(fields[name])
		if err != nil {
			return err
		}
		value, err := cborOf(raw)
		if err != nil {
			return err
		}
		key, err := direct.Marshal(name)
		if err != nil {
			return err
		}
		if _, err := l.out.Write(append(key, value...)); err != nil {
			return err
		}
	}
	return nil
}

func (l *cborList) item(encoded []byte) error {
	_, err := l.out.Write(encoded)
	return err
}

func (l *cborList) end(fields map[string]any) error {
	if err := l.out.WriteByte(cborBreak); err != nil {
		return err
	}
	if err := l.fields(fields); err != nil {
		return err
	}
	return l.out.WriteByte(cborBreak)
}

// mostInProtobuf is the maximum size in bytes of the items of a list in protobuf, all of which must
// be in memory. A longer list is answered in another encoding, if the client accepts one.
const mostInProtobuf = 32 << 20

var errLongInProtobuf = errors.New("the list is too long for protobuf")

// Field numbers of lists, which are the same in all kinds except one, and of the envelope of an
// object (runtime.Unknown).
const (
	listMetadata    = protowire.Number(1)
	listItems       = protowire.Number(2)
	unknownTypeMeta = protowire.Number(1)
	unknownRaw      = protowire.Number(2)
)

type protobufList struct {
	out             *bufio.Writer
	kind            runtime.TypeMeta
	metadata, field protowire.Number
	items           [][]byte
	size            int
}

func (l *protobufList) begin(list map[string]any, _ string) error {
	l.kind.APIVersion, _ = list["apiVersion"].(string)
	l.kind.Kind, _ = list["kind"].(string)
	l.metadata, l.field = listMetadata, listItems
	// In PartialObjectMetadataList of v1beta1 the numbers of metadata and items are exchanged.
	if l.kind.APIVersion == metav1beta1.SchemeGroupVersion.String() {
		l.metadata, l.field = listItems, listMetadata
	}
	return nil
}

func (l *protobufList) item(encoded []byte) error {
	head := protowire.AppendVarint(protowire.AppendTag(nil, l.field, protowire.BytesType), uint64(len(encoded)))
	l.items = append(l.items, head, encoded)
	if l.size += len(head) + len(encoded); l.size > mostInProtobuf {
		return errLongInProtobuf
	}
	return nil
}

func (l *protobufList) end(fields map[string]any) error {
	meta, ok := fields["metadata"].(metav1.ListMeta)
	if !ok || len(fields) > 1 {
		return fmt.Errorf("a list in protobuf has metadata and nothing else, not %v", slices.Sorted(maps.Keys(fields)))
	}
	described, err := meta.Marshal()
	if err != nil {
		return err
	}
	described = protowire.AppendBytes(protowire.AppendTag(nil, l.metadata, protowire.BytesType), described)
	kind, err := l.kind.Marshal()
	if err != nil {
		return err
	}
	head := protowire.AppendBytes(protowire.AppendTag([]byte("k8s\x00"), unknownTypeMeta, protowire.BytesType), kind)
	head = protowire.AppendVarint(protowire.AppendTag(head, unknownRaw, protowire.BytesType), uint64(len(described)+l.size)) //nolint:gosec // lengths are positive
	for _, part := range slices.Concat([][]byte{head, described}, l.items) {
		if _, err := l.out.Write(part); err != nil {
			return err
		}
	}
	return nil
}
