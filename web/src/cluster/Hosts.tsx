import { Link } from "wouter"
import { OperationTable, operationLink, useOperations } from "../operation/Operations"
import { hostDiff } from "../operation/operation"
import { Badge, Mark } from "../part/Mark"
import { Notice } from "../part/Notice"
import { Facts, Section, SmallTable } from "../part/Page"
import { t, time } from "../text/text"
import { type Cluster, condition } from "./cluster"

const tones = { added: "good", removed: "bad", kept: "plain" } as const

/**
 * The hosts of a cluster that Orrery built: the spec, the current hosts, and the operations that
 * change them.
 */
export function Hosts({ cluster }: { cluster: Cluster }) {
  const operations = useOperations(cluster.metadata.name)
  const { provision } = cluster.status ?? {}
  const expiring = condition(cluster, "CertificatesExpiring")
  const provisioned = condition(cluster, "Provisioned")
  const diff = hostDiff(cluster.spec.provision, provision?.nodes)
  const addresses = new Map(cluster.spec.provision?.hosts?.map((h) => [h.name, h.internalAddress ?? h.address]))
  const differs = diff.some((h) => h.change !== "kept")
  return (
    <div className="stack">
      {expiring?.status === "True" && (
        <Notice tone="warn" title={t("operation.certificatesDue")}>
          {expiring.message}
        </Notice>
      )}
      {provisioned && provisioned.status !== "True" && (
        <Notice tone={provisioned.reason === "Provisioning" ? "plain" : "bad"} title={provisioned.reason}>
          {provisioned.message}
        </Notice>
      )}
      <Section title={t("cluster.facts")}>
        <Facts
          facts={[
            [t("operation.wanted"), cluster.spec.provision?.kubernetes?.version ?? t("common.unknown")],
            [t("operation.applied"), provision?.version ?? t("common.none")],
            [t("operation.certificates"), provision?.certificatesExpire ? time(provision.certificatesExpire) : t("common.unknown")],
            [
              t("operation.last"),
              provision?.operation ? (
                <Link key="last" className="link" href={operationLink(provision.operation)}>
                  {provision.operation}
                </Link>
              ) : (
                t("common.none")
              ),
            ],
          ]}
        />
      </Section>
      <Section title={t("cluster.hosts")}>
        {differs && <p className="muted">{t("operation.hostsDiffer")}</p>}
        <SmallTable
          label={t("cluster.hosts")}
          head={[t("operation.host"), t("operation.address"), t("operation.roles"), t("operation.change")]}
          rows={diff.map((h) => ({
            key: h.name,
            cells: [
              h.name,
              <span key="address" className="mono">
                {addresses.get(h.name) ?? provision?.nodes?.find((n) => n.hostname === h.name)?.internalIP ?? ""}
              </span>,
              <span key="roles" className="badges">
                {h.roles.map((r) => (
                  <Badge key={r}>{r}</Badge>
                ))}
              </span>,
              <Mark key="change" tone={tones[h.change]}>
                {t(`operation.${h.change}`)}
              </Mark>,
            ],
          }))}
        />
      </Section>
      <Section title={t("operation.title")}>
        <OperationTable answer={operations} />
      </Section>
    </div>
  )
}
