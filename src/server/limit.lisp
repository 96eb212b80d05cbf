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

(defstruct (peer-entry (:constructor make-peer-entry (share)) (:copier nil))
  "How many LINKS a peer's address has, and its SHARE of the reserve, of which those of its links
are parts."
  (links 0 :type index)
  (share nil :type loop:share :read-only t))

(declaim (sb-ext:freeze-type peer-entry))

(defun peer-share (server)
  "A share of SERVER's reserve for a peer's address, which may be a load balancer's and stand for
many: alone seven eighths of what is not kept for other peers."
  (loop:make-share :whole (loop:reserve-root (server-reserve server))
                   :weight 7
                   :kept (ash (options-reserve-threads (server-options server)) -4)))

(defun link-share (link whole)
  "A share for LINK, part of that of its peer, WHOLE: alone four fifths of what that may have and is
not kept for other connections."
  (let ((options (rpc:link-options link)))
    (loop:make-share :whole whole
                     :weight 4
                     :kept (ash (options-reserve-threads options) -2)
                     :most (options-max-running-handlers options))))

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
           (let ((peer (or (gethash host peers)
                           (setf (gethash host peers)
                                 (make-peer-entry (peer-share server))))))
             (when (< (peer-entry-links peer) (options-max-connections-per-peer options))
               (incf (peer-entry-links peer))))))))

(defun forget-peer (hub peer)
  "A connection of PEER that ADMIT-LINK-P counted has ended."
  (let* ((server (hub-server hub))
         (peers (server-peers server))
         (host (peer-host peer)))
    (sb-ext:with-locked-hash-table (peers)
      (when (zerop (decf (peer-entry-links (gethash host peers))))
        (push host (server-gone-peers server)))
      (setf (server-gone-peers server)
            (delete-if (lambda (host) (forgotten-p host peers)) (server-gone-peers server))))))

(defun forgotten-p (host peers)
  "True if HOST is gone, or back; else handlers of it run still, and if it comes back they count."
  (let ((peer (gethash host peers)))
    (cond ((or (null peer) (plusp (peer-entry-links peer))) t)
          ((zerop (loop:share-running (peer-entry-share peer))) (remhash host peers)))))

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
  "True if so many answers wait for LINK's peer to take them that no more of its calls may begin."
  (let* ((answers (rpc:link-answers link))
         (waiting (+ (if answers (the index (rpc:answers-coming answers)) 0)
                     (http2:accounting-queued-octets
                      (http2:connection-accounting (rpc:link-http2 link))))))
    (and (< +least-queued-octets+ waiting)
         (< (the index (queued-limit link)) waiting))))

(define-hot output-waits-p ((link link)) boolean
  "True if so much of LINK's output is not sent that no more of its calls are to begin: it may be
header blocks, which no window holds back. On the loop."
  (< (options-max-unsent-octets (rpc:link-options link))
     (loop:connection-unsent (the loop:connection (rpc:link-socket link)))))

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
    (unless (call-status call)
      (if queue
          (setf (cddr queue) cell
                (cdr queue) cell)
          (setf (rpc:answers-held-up answers) (cons cell cell)))
      ;; it may have done so meanwhile
      (rpc:answers-left (link-owner link) link))))

(defun leave-held-up (link call)
  "CALL, of LINK, waits no more, if it did."
  (let* ((answers (rpc:link-answers link))
         (queue (and answers (rpc:answers-held-up answers))))
    (when queue
      (let ((left (delete call (the list (car queue)) :test #'eq)))
        (setf (rpc:answers-held-up answers) (and left (cons left (last left))))))))

(defmethod rpc:answers-left ((hub hub) link)
  ;; what is unsent now may be sent in this turn
  (loop:defer (link-loop link) #'start-held-up link))

(defun start-held-up (link)
  "Start the call of LINK that was held up first, unless too much waits still, and later the next."
  (let* ((answers (rpc:link-answers link))
         (queue (rpc:answers-held-up answers)))
    (when (and queue (not (answers-wait-p link)) (not (output-waits-p link)))
      (let ((call (pop (car queue))))
        (unless (car queue) (setf (rpc:answers-held-up answers) nil))
        (unless (call-status call) (run-call call))
        (loop:defer (link-loop link) #'start-held-up link)))))

(defun ensure-share (link)
  "What LINK, which is to have a thread, has of the reserve. On its loop."
  (or (rpc:link-share link)
      (let* ((peers (server-peers (hub-server (link-owner link))))
             (peer (sb-ext:with-locked-hash-table (peers)
                     (gethash (peer-host (rpc:link-peer link)) peers))))
        (setf (rpc:link-share link) (link-share link (peer-entry-share peer))))))

(defun forget-waiting (link)
  "LINK has ended: of its calls those that wait for a thread need none any more."
  (when (rpc:link-share link)
    (loop:leave-reserve (server-reserve (hub-server (link-owner link))) (rpc:link-share link))))
