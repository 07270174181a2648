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

// Limits on redemptions. A redemption is the request of an agent that exchanges the token of a join
// for a certificate. Its client is not authenticated.
const (
	redeemTime = 30 * time.Second // for the whole redemption
	bodyTime   = 10 * time.Second // for the body of the request to arrive
	redeeming  = 16               // redemptions at once
)

// Limits on the rate of redemptions, from all addresses and from one address. Behind a load
// balancer all agents have one address.
var (
	rateOfAll     = slots.Rate{PerSecond: 50, Burst: 200}
	rateOfAddress = slots.Rate{PerSecond: 10, Burst: 50}
)

// join is the record of a token, from the Secret NAME.join of a Cluster. No token is valid with the
// zero value.
type join struct {
	hash []byte
	ends time.Time
	uid  types.UID
	key  string // fingerprint of the key that used the token; "": unused
}

// readJoin parses a Secret NAME.join, the record of a token. If values are missing or invalid, no
// token is valid with the result.
func readJoin(s *corev1.Secret) join {
	return join{
		hash: s.Data[joinHash], ends: moment(string(s.Data[joinEnds])), uid: types.UID(s.Data[joinUID]), key: string(s.Data[joinKey]),
	}
}

// opens reports whether an agent may redeem the token for the Cluster with this UID. key is the
// fingerprint of the agent's key. It is false for a wrong token, an empty UID, after the end of the
// token, and if another key has used the token.
func (j join) opens(uid types.UID, token, key string, now time.Time) bool {
	hash := sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(j.hash, hash[:]) == 1
	return same && uid != "" && j.uid == uid && now.Before(j.ends) && (j.key == "" || j.key == key)
}

// usedBy reports whether an agent with this key fingerprint has redeemed the token for the Cluster
// with this UID, and the token has not ended. It is false for an empty key.
func (j join) usedBy(uid types.UID, key string, now time.Time) bool {
	return key != "" && j.key == key && j.uid == uid && now.Before(j.ends)
}

// errNotOpened is the answer to every invalid token, and to every name of a cluster that does not
// exist. So it does not reveal which clusters exist, or which have tokens.
var errNotOpened = errors.New("the token opens no cluster of this name: it may have ended, have been replaced, or have been used with another key; run orrery cluster rejoin where the hub is administered, and apply what it prints")

// limits bounds the redemptions that run at once (places), and those that begin in a second
// (rates).
type limits struct {
	places chan struct{}
	rates  *slots.Rates
}

// newLimits returns limits with the constants of this file.
func newLimits() *limits {
	return &limits{places: make(chan struct{}, redeeming), rates: slots.NewRates(rateOfAll, rateOfAddress)}
}

// redeem serves tunnel.RedeemPath: POST with a tunnel.Redemption, answered with a tunnel.Receipt.
// The status is 200 if the token was accepted, 403 if it was refused, 400 or 405 for invalid
// requests, 429 if there are too many requests, and 503 if the hub failed. The client is not
// authenticated.
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

// busy answers a redemption with status 429 and the header Retry-After.
func (e *Enrollment) busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	e.answer(w, "Busy", http.StatusTooManyRequests, tunnel.Receipt{Refused: "too many agents are joining at once; try again"})
}

// answer writes the receipt of a redemption with the status, and counts result (such as Accepted)
// in the metrics.
func (e *Enrollment) answer(w http.ResponseWriter, result string, status int, receipt tunnel.Receipt) {
	redemptions.WithLabelValues(result).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(receipt) //nolint:errchkjson // the client may be gone
}

// refusal is an error that may be sent to the agent. Other errors are only logged.
type refusal struct{ error }

// take exchanges the token in a Redemption for a certificate, in DER. It records the agent's key,
// and offers the agent's credentials for the cluster to the hub. An error may be sent to the agent
// only if it is a *refusal. If the process is killed between two of these changes, the agent
// repeats the whole redemption.
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

// bind records that an agent's key has used the token of a Cluster, and returns the Cluster. key is
// the fingerprint of the key. The error is a *refusal if the token is not valid for the Cluster and
// the key, or the Cluster does not exist. The agent is not authenticated yet. So bind makes the
// same requests whether the cluster exists or not.
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

// keeps returns a *refusal if the agents of the cluster have another key than that with this
// fingerprint. A token does not replace their key, because a thief of the token could otherwise
// disconnect the cluster. Other errors are those of the request to the API server. bind calls keeps
// only after it has checked the token.
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

// nameOfCluster returns the text if it can be the name of a cluster, else "-", which no cluster
// has as its name. With "-", bind makes the same requests for an invalid name as for the name of
// a cluster that does not exist.
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

// issue issues a certificate of a Cluster, in DER, for an agent's key. name is the fingerprint of
// the key. issue first stores name as the key that the cluster's agents may use; otherwise the
// certificate could not be revoked. fresh allows a new key, for a redemption, if the key has used
// the token that is valid now. In all other cases, the error is a *refusal if name is not stored
// already.
//
// A key is never stored after Replace has revoked it: issue reads the Secret NAME.agent, then the
// token, and writes the Secret only if it did not change since. Replace writes the token, then the
// Secret. So issue either reads the new token, or its write is a conflict, or Replace overwrites
// the key. All reads are from the API server, because a cache could have the earlier token.
func (e *Enrollment) issue(ctx context.Context, k *keeper, c *clusterv1alpha1.Cluster, key *ecdsa.PublicKey, name string, fresh bool) ([]byte, error) {
	now := e.now()
	err := write(ctx, e.reader, e.hub, c.Name+agentSuffix, func(s *corev1.Secret) (bool, error) {
		known := keyOf(s, c) == name
		if !known && !fresh {
			return false, &refusal{errors.New("the certificate was revoked meanwhile")}
		}
		if !known {
			if err := e.stillOpens(ctx, c, name); err != nil {
				return false, err
			}
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

// stillOpens returns a *refusal if the valid token of the Cluster is not one that the key with this
// fingerprint has used: after bind, the token was replaced or has ended.
func (e *Enrollment) stillOpens(ctx context.Context, c *clusterv1alpha1.Cluster, key string) error {
	s := &corev1.Secret{}
	if _, err := e.get(ctx, client.ObjectKeyFromObject(secretOf(c.Name, joinSuffix)), s); err != nil {
		return err
	}
	if !readJoin(s).usedBy(c.UID, key, e.now()) {
		return &refusal{errNotOpened}
	}
	return nil
}
