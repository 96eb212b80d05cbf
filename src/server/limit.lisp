;;;; What the peers together may have a server hold and do, beyond what each connection is held to
;;;; by itself: connections in all and per peer, those not yet ready, calls, handlers that run. What
;;;; is too much is turned away early, before anything is done for it. (Octets: rpc/held.lisp.)
;;;;
;;;; Limits of the whole server are shared out among its loops, so that each counts by itself; only
;;;; peers are counted in one table, under its lock, once a connection.

(in-package #:clgrpc.server)

(defun share-out (limit server)
  "The share of LIMIT that each loop of SERVER has."
  (ceiling limit (server-loop-count server)))

;;; Connections

(defun peer-host (peer)
  "The address, without the port, in PEER, as transports have it; all peers of a unix socket are
one."
  (subseq peer 0 (or (position #\: peer :from-end t) (length peer))))

(defun admit-link-p (hub peer)
  "True if HUB may have another connection, of PEER, which is counted then."
  (let* ((server (hub-server hub))
         (options (hub-options hub))
         (host (peer-host peer))
         (peers (server-peers server)))
    (and (< (hub-unready hub) (share-out (options-max-handshakes options) server))
         (sb-ext:with-locked-hash-table (peers)
           (when (< (gethash host peers 0) (options-max-connections-per-peer options))
             (incf (gethash host peers 0)))))))

(defun forget-peer (hub peer)
  "A connection of PEER that ADMIT-LINK-P counted has ended."
  (let ((host (peer-host peer))
        (peers (server-peers (hub-server hub))))
    (sb-ext:with-locked-hash-table (peers)
      (when (zerop (decf (gethash host peers 0)))
        (remhash host peers)))))

(defun link-ready (http2)
  "The sink's on-settings: with the first ones the connection is ready."
  (let ((link (http2:connection-user http2)))
    (trace-event :handshaker :settings-received :role :server :peer (rpc:link-peer link))
    (unless (shiftf (rpc:link-ready link) t)
      (decf (hub-unready (link-owner link))))))

;;; Calls

(define-hot (too-many-calls-p :inline t) ((hub hub)) boolean
  (> (hub-open hub) (hub-max-open hub)))

(defconstant +least-queued-octets+ 65536
  "What each connection may have queued, however much there is in all.")

(defun queued-limit (link)
  "How much of its answers LINK may have queued: less while all links of its hub have much."
  (let* ((hub (link-owner link))
         (share (share-out (ash (rpc:total-held-limit link) -1) (hub-server hub))))
    (if (< (+ (hub-answering hub) (http2:pool-queued-octets (hub-pool hub))) share)
        (options-max-queued-octets (rpc:link-options link))
        +least-queued-octets+)))

(define-hot answers-wait-p ((link link)) boolean
  "True if so much waits for LINK's peer to take it that no more of its calls are to begin."
  (let* ((answers (rpc:link-answers link))
         (waiting (+ (if answers (the index (rpc:answers-coming answers)) 0)
                     (http2:accounting-queued-octets
                      (http2:connection-accounting (rpc:link-http2 link))))))
    (and (< +least-queued-octets+ waiting)
         (< (the index (queued-limit link)) waiting))))

(defun ensure-answers (link)
  "The ANSWERS of LINK. From any thread."
  (or (rpc:link-answers link)
      (let ((new (rpc:make-answers)))
        (or (sb-ext:compare-and-swap (rpc:link-answers link) nil new)
            new))))

(defun note-answering (link count)
  "COUNT octets of an answer are on their way to the loop of LINK, or have come there."
  (sb-ext:atomic-incf (rpc:answers-coming (ensure-answers link)) count)
  (sb-ext:atomic-incf (hub-answering (link-owner link)) count))

(defun hold-up (call)
  "Have CALL wait until its link's peer has taken enough. On the loop."
  (let* ((link (wire-call-link call))
         (answers (ensure-answers link))
         (queue (rpc:answers-held-up answers))
         (cell (list call)))
    (if queue
        (setf (cddr queue) cell
              (cdr queue) cell)
        (setf (rpc:answers-held-up answers) (cons cell cell)))
    ;; it may have done so meanwhile
    (rpc:answers-left (link-owner link) link)))

(defmethod rpc:answers-left ((hub hub) link)
  (unless (answers-wait-p link)
    (loop:defer (link-loop link) #'start-held-up link)))

(defun start-held-up (link)
  "Start the call of LINK that was held up first, unless too much waits still, and later the next."
  (let* ((answers (rpc:link-answers link))
         (queue (rpc:answers-held-up answers)))
    (when (and queue (not (answers-wait-p link)))
      (let ((call (pop (car queue))))
        (unless (car queue) (setf (rpc:answers-held-up answers) nil))
        (unless (call-status call) (run-call call))
        (loop:defer (link-loop link) #'start-held-up link)))))

(defun admit-handler-p (link)
  "True if another handler of LINK may run on a reserve thread, or wait for one; it is counted
then."
  (let ((limit (options-max-running-handlers (rpc:link-options link))))
    (or (< (sb-ext:atomic-incf (rpc:link-handlers link)) limit)
        (progn (handler-ended link) nil))))

(defun handler-ended (link)
  "A handler that ADMIT-HANDLER-P counted has returned, or will not run. From any thread."
  (sb-ext:atomic-decf (rpc:link-handlers link))
  nil)
