// Asks what was put last, once nothing was put for a moment, and tells only the answer to that. Until it is there the last
// answer stays, marked as one to an earlier question.

export interface Told<A> {
  answer?: A
  error?: unknown
  /** A newer question is under way: what is told is of an earlier one. */
  stale: boolean
}

export class Latest<Q, A> {
  private timer: ReturnType<typeof setTimeout> | undefined
  private abort: AbortController | undefined
  private last: Told<A> = { stale: false }
  private asked: { question: Q; key: string } | undefined

  constructor(
    private readonly ask: (question: Q, signal: AbortSignal) => Promise<A>,
    private readonly told: (told: Told<A>) => void,
    private readonly delay = 300,
  ) {}

  put(question: Q): void {
    const key = JSON.stringify(question)
    if (key === this.asked?.key) return
    this.asked = { question, key }
    this.stop()
    this.tell({ ...this.last, stale: true })
    this.timer = setTimeout(() => this.run(question), this.delay)
  }

  /** Asks anew what was asked last: the answer may be another by now. */
  again(): void {
    if (this.asked && !this.last.stale) void this.run(this.asked.question)
  }

  stop(): void {
    clearTimeout(this.timer)
    this.abort?.abort()
  }

  private async run(question: Q): Promise<void> {
    const abort = new AbortController()
    this.abort = abort
    try {
      const answer = await this.ask(question, abort.signal)
      if (!abort.signal.aborted) this.tell({ answer, stale: false })
    } catch (error) {
      if (!abort.signal.aborted) this.tell({ answer: this.last.answer, error, stale: false })
    }
  }

  private tell(told: Told<A>): void {
    this.last = told
    this.told(told)
  }
}
