package enrollment

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/slots"
	"orrery.dev/orrery/internal/tunnel"
)

// Limits on redemptions, which come from unauthenticated clients.
const (
	redeemTime = 30 * time.Second // for the whole redemption
	bodyTime   = 10 * time.Second // for its body to arrive; see Options
	redeeming  = 16               // at once
)

// How often redemptions are accepted. Behind a balancer all agents have one address.
var (
	rateOfAll     = slots.Rate{PerSecond: 50, Burst: 200}
	rateOfAddress = slots.Rate{PerSecond: 10, Burst: 50}
)

// join is the stored part of a token.
type join struct {
	hash []byte
	ends time.Time
	uid  types.UID
	key  string // fingerprint of the key that used it; "": unused
}

func readJoin(s *corev1.Secret) join {
	return join{
		hash: s.Data[joinHash], ends: moment(string(s.Data[joinEnds])), uid: types.UID(s.Data[joinUID]), key: string(s.Data[joinKey]),
	}
}

// opens reports whether the token, redeemed with the key, is valid for the Cluster with the UID.
func (j join) opens(uid types.UID, token, key string, now time.Time) bool {
	hash := sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(j.hash, hash[:]) == 1
	return same && uid != "" && j.uid == uid && now.Before(j.ends) && (j.key == "" || j.key == key)
}

// usedBy reports whether the key can still redeem its token again.
func (j join) usedBy(uid types.UID, key string, now time.Time) bool {
	return key != "" && j.key == key && j.uid == uid && now.Before(j.ends)
}

// errNotOpened is the answer to every invalid token. It does not reveal which clusters exist, or
// which have tokens.
var errNotOpened = errors.New("the token opens no cluster of this name: it may have ended, have been replaced, or have been used with another key; run orrery cluster rejoin where the hub is administered, and apply what it prints")

// limits bounds redemptions.
type limits struct {
	places chan struct{}
	rates  *slots.Rates
}

func newLimits() *limits {
	return &limits{places: make(chan struct{}, redeeming), rates: slots.NewRates(rateOfAll, rateOfAddress)}
}

// redeem serves tunnel.RedeemPath.
func (e *Enrollment) redeem(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		e.answer(w, "Invalid", http.StatusMethodNotAllowed, tunnel.Receipt{Refused: "this is where agents of clusters post the token of a join"})
		return
	}
	if !e.limits.rates.Allow(r.RemoteAddr) {
		e.busy(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), redeemTime)
	defer cancel()
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.options.bodyTime)); err != nil {
		e.log.V(1).Info("a redemption has no bound of time", "cause", err.Error())
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, tunnel.MaxReport))
	var redemption tunnel.Redemption
	if err != nil || json.Unmarshal(body, &redemption) != nil {
		e.answer(w, "Invalid", http.StatusBadRequest, tunnel.Receipt{Refused: "this is no redemption of a token"})
		return
	}
	select {
	case e.limits.places <- struct{}{}:
		defer func() { <-e.limits.places }()
	default:
		e.busy(w)
		return
	}
	certificate, err := e.take(ctx, redemption)
	refused := (*refusal)(nil)
	switch {
	case errors.As(err, &refused):
		e.answer(w, "Refused", http.StatusForbidden, tunnel.Receipt{Refused: err.Error()})
	case err != nil:
		e.log.Info("a redemption failed", "cause", err.Error()) // the cluster's name is untrusted
		e.answer(w, "Failed", http.StatusServiceUnavailable, tunnel.Receipt{Refused: "the hub cannot take the token now; try again"})
	default:
		e.log.Info("an agent has redeemed the token of its cluster", "cluster", redemption.Cluster, "address", r.RemoteAddr)
		e.answer(w, "Accepted", http.StatusOK, tunnel.Receipt{Certificate: certificate})
	}
}

func (e *Enrollment) busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	e.answer(w, "Busy", http.StatusTooManyRequests, tunnel.Receipt{Refused: "too many agents are joining at once; try again"})
}

func (e *Enrollment) answer(w http.ResponseWriter, result string, status int, receipt tunnel.Receipt) {
	redemptions.WithLabelValues(result).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(receipt) //nolint:errchkjson // it may have gone
}

// refusal is an error that the client may see.
type refusal struct{ error }

// take exchanges a token for a certificate. The process may be killed between any two steps: the
// agent then repeats the whole redemption.
func (e *Enrollment) take(ctx context.Context, r tunnel.Redemption) (certificate []byte, err error) {
	k := e.keeper.Load()
	if k == nil {
		return nil, errStarting
	}
	key, name, err := requested(r.Request)
	if err != nil {
		return nil, &refusal{err}
	}
	var proof tunnel.Proof
	if err := tunnel.Open(k.sealing, r.Cluster, r.Sealed, &proof); err != nil {
		return nil, &refusal{err}
	}
	c, err := e.bind(ctx, r.Cluster, proof.Token, name)
	if err != nil {
		return nil, err
	}
	certificate, err = e.issue(ctx, k, c, key, name, true)
	if err != nil {
		return nil, err
	}
	if err := e.options.Offer(ctx, c.Name, c.UID, proof.Credentials, true); err != nil {
		return nil, &refusal{err}
	}
	return certificate, nil
}

// bind records that a key has used the token of a Cluster. Unauthenticated requests get this far,
// so all of them take the same path, whether the cluster exists or not.
func (e *Enrollment) bind(ctx context.Context, cluster, token, key string) (*clusterv1alpha1.Cluster, error) {
	c := &clusterv1alpha1.Cluster{}
	named := nameOfCluster(cluster)
	if _, err := e.get(ctx, client.ObjectKey{Name: named}, c); err != nil {
		return nil, err
	}
	uid := c.UID
	if !c.DeletionTimestamp.IsZero() {
		uid = ""
	}
	err := write(ctx, e.reader, e.hub, named+joinSuffix, func(s *corev1.Secret) (bool, error) {
		j := readJoin(s)
		if !j.opens(uid, token, key, e.now()) || named != cluster {
			return false, &refusal{errNotOpened}
		}
		if j.key == key {
			return false, nil
		}
		if err := e.keeps(ctx, c, key); err != nil {
			return false, err
		}
		s.Data[joinKey] = []byte(key)
		return true, nil
	})
	return c, err
}

// keeps returns an error if agents of the cluster have another key. A token does not replace their
// key: a thief of the token would disconnect the cluster. Only the holder of the token gets here.
func (e *Enrollment) keeps(ctx context.Context, c *clusterv1alpha1.Cluster, key string) error {
	agents := &corev1.Secret{}
	if _, err := e.get(ctx, client.ObjectKeyFromObject(secretOf(c.Name, agentSuffix)), agents); err != nil {
		return err
	}
	if have := keyOf(agents, c); have != "" && have != key {
		return &refusal{fmt.Errorf("the agents of cluster %s have another key, which this token does not replace: if they lost it, or are older than the hub, "+
			"run orrery cluster rejoin %s --replace where the hub is administered, and apply what it prints", c.Name, c.Name)}
	}
	return nil
}

// nameOfCluster returns the text if it can be the name of a cluster, else a name that no cluster
// has.
func nameOfCluster(text string) string {
	if len(text) == 0 || len(text) > 63 {
		return "-"
	}
	for _, r := range text {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return "-"
		}
	}
	return text
}

// issue issues a certificate of a Cluster for a key. It first stores the key as the one that the
// cluster's agents may use: otherwise the certificate could not be revoked. If fresh is false, the
// key must be stored already.
func (e *Enrollment) issue(ctx context.Context, k *keeper, c *clusterv1alpha1.Cluster, key *ecdsa.PublicKey, name string, fresh bool) ([]byte, error) {
	now := e.now()
	err := write(ctx, e.reader, e.hub, c.Name+agentSuffix, func(s *corev1.Secret) (bool, error) {
		if !fresh && keyOf(s, c) != name {
			return false, &refusal{errors.New("the certificate was revoked meanwhile")}
		}
		owned(s, c)
		s.Annotations = map[string]string{annotationKey: name, annotationEnds: written(now.Add(certificateLife))}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return k.certify(identity{cluster: c.Name, uid: c.UID}, key, now)
}
