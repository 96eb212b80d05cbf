;;;; Limits for all peers of a server together, in addition to the limits of each connection: calls,
;;;; running handlers, waiting answers. A call above a limit is refused early, before the server
;;;; does any work for it. (Connections: admission.lisp. Octets: wire/link-memory.lisp.)
;;;;
;;;; A limit of the whole server is divided among its loops, so that each loop counts independently.

(in-package #:clgrpc.server)

(defun share-out (limit server)
  "The share of LIMIT that each loop of SERVER has."
  (ceiling limit (server-loop-count server)))

;;; Threads

(defun make-link-quota (link parent)
  "A quota of threads for LINK, a child of PARENT, the quota of its peer. A peer's only connection
may use 4/5 of those threads of the peer that are not reserved for other connections."
  (let ((options (server-link-options link)))
    (loop:make-quota :parent parent
                     :weight 4
                     :kept (ash (options-reserve-threads options) -2)
                     :most (options-max-running-handlers options))))

;;; Calls

(define-hot (refusal-of-call :inline t)
            ((server-loop server-loop) (link server-link) (peer-view peer-view))
    (or null keyword)
  "The verdict on the newest call of LINK, of the peer PEER-VIEW, if it may not begin, else nil. The
call is counted already."
  (cond ((memory-pressure-p server-loop)
         (complain server-loop :heap (link-peer-name link))
         :no-room-for-calls)
        ((and (> (server-loop-open server-loop) (ash (server-loop-max-open server-loop) -1))
              (too-many-calls-p server-loop link peer-view))
         :too-many-calls)
        (t nil)))

(defun too-many-calls-p (server-loop link peer-view)
  "True if the newest call of LINK must be refused. The function is called when more than half of
the allowed calls are open. The rule is the same as for threads (loop/threads/thread-quota.lisp).
Let F be the number of further calls that are allowed, and K a sixteenth of all:
- a peer with N calls may have another while N <= 7 (F - K);
- a peer without calls may have one while F > 0;
- a connection without calls may have one while F > K / 2.
For example, of 1600 calls one peer alone may have 1313: then F is 287, K is 100, and 7 (F - K)
is 1309."
  (let* ((most (server-loop-max-open server-loop))
         (free (- most (1- (server-loop-open server-loop))))
         (kept (ash most -4))
         (refused (not (and (plusp free)
                            (or (= 1 (peer-view-open peer-view))
                                (<= (1- (peer-view-open peer-view)) (* 7 (- free kept)))
                                (and (= 1 (server-link-calls link)) (< (ash kept -1) free)))))))
    (when refused
      (complain server-loop :max-calls (link-peer-name link)))
    refused))

(defconstant +least-queued-octets+ 65536
  "How many octets of answers each connection may always have queued, however many octets all
connections have queued.")

(defun most-queued-answers (link)
  "How many octets of answers LINK may have queued; the number is smaller while all links together
hold many octets."
  (if (wire:pressed-p link)
      +least-queued-octets+
      (options-max-queued-octets (server-link-options link))))

(define-hot answers-wait-p ((link server-link)) boolean
  "True if no further call of LINK may begin, since too many answers wait until LINK's peer receives
them."
  (let* ((http2 (server-link-http2 link))
         (waiting (+ (the index (server-link-posted link))
                     (if http2
                         (http2:counters-queued-octets (http2:connection-counters http2))
                         0))))
    (declare (type index waiting))
    (and (< +least-queued-octets+ waiting)
         (< (the index (most-queued-answers link)) waiting))))

(define-hot (output-waits-p :inline t) ((link server-link)) boolean
  "True if no more calls of LINK may begin, since too much of its output is unsent. Unsent output
may be header blocks, which no window holds back. On the loop."
  (let ((socket (the loop:connection (server-link-socket link))))
    (< (loop:connection-max-unsent socket) (loop:connection-unsent socket))))

(defun ensure-quota (link)
  "LINK's quota of threads, made now if it does not exist yet. On its loop."
  (or (server-link-quota link)
      (setf (server-link-quota link)
            (make-link-quota link (peer-entry-quota (permit-entry (server-link-permit link)))))))

(defun forget-waiting (link)
  "Remove the calls of LINK, which has ended, from the reserve's queue."
  (when (server-link-quota link)
    (loop:leave-reserve (server-reserve (server-loop-server (server-link-owner link)))
                        (server-link-quota link))))
