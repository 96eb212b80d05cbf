;;;; What the peers together may have a server do, beyond what each connection is held to by itself:
;;;; calls, handlers that run, answers that wait. What is too much is turned away early, before
;;;; anything is done for it. (Connections: peer.lisp. Octets: wire/held.lisp.)
;;;;
;;;; Limits of the whole server are shared out among its loops, so that each counts by itself.

(in-package #:clgrpc.server)

(defun share-out (limit server)
  "The share of LIMIT that each loop of SERVER has."
  (ceiling limit (server-loop-count server)))

;;; Threads

(defun link-share (link whole)
  "A share of the reserve for LINK, part of WHOLE, its peer's. One connection alone may use 4/5 of
the threads that its peer may use and that are not kept for other connections."
  (let ((options (wire:link-options link)))
    (loop:make-share :whole whole
                     :weight 4
                     :kept (ash (options-reserve-threads options) -2)
                     :most (options-max-running-handlers options))))

;;; Calls

(define-hot (call-refused-p :inline t) ((hub hub) (link link) (guest guest)) boolean
  "True if the newest call of LINK, of the peer GUEST, which is counted already, is too much."
  (and (> (hub-open hub) (ash (hub-max-open hub) -1))
       (too-many-calls-p hub link guest)))

(defun too-many-calls-p (hub link guest)
  "As CALL-REFUSED-P, when there are many. The rule is that of threads (loop/share.lisp): a peer may
have another call while it has no more than seven times what is free beyond a sixteenth; one that
has none may have one while any is free, and so may a connection that has none until half of that
sixteenth is left."
  (let* ((most (hub-max-open hub))
         (free (- most (1- (hub-open hub))))
         (kept (ash most -4))
         (refused (not (and (plusp free)
                            (or (= 1 (guest-open guest))
                                (<= (1- (guest-open guest)) (* 7 (- free kept)))
                                (and (= 1 (wire:link-calls link)) (< (ash kept -1) free)))))))
    (when refused
      (complain hub :max-calls (link-peer-name link)))
    refused))

(defconstant +least-queued-octets+ 65536
  "What each connection may have queued, however much there is in all.")

(defun queued-limit (link)
  "How much of its answers LINK may have queued: less while all links of its hub have much."
  (let* ((hub (link-owner link))
         (share (share-out (ash (wire:total-held-limit link) -1) (hub-server hub))))
    (if (< (+ (hub-answering hub) (http2:pool-queued-octets (hub-pool hub))) share)
        (options-max-queued-octets (wire:link-options link))
        +least-queued-octets+)))

(define-hot answers-wait-p ((link link)) boolean
  "True if so many answers wait for LINK's peer to take them that no more of its calls may begin."
  (let* ((answers (wire:link-answers link))
         (waiting (+ (if answers (the index (wire:answers-coming answers)) 0)
                     (http2:counters-queued-octets
                      (http2:connection-counters (wire:link-http2 link))))))
    (and (< +least-queued-octets+ waiting)
         (< (the index (queued-limit link)) waiting))))

(define-hot (output-waits-p :inline t) ((link link)) boolean
  "True if so much of LINK's output is not sent that no more of its calls are to begin: it may be
header blocks, which no window holds back. On the loop."
  (< (options-max-unsent-octets (wire:link-options link))
     (loop:connection-unsent (the loop:connection (wire:link-socket link)))))

(defun ensure-answers (link)
  "The ANSWERS of LINK. From any thread."
  (or (wire:link-answers link)
      (let ((new (wire:make-answers)))
        (or (sb-ext:compare-and-swap (wire:link-answers link) nil new)
            new))))

(defun note-answering (link count)
  "COUNT octets of an answer are on their way to the loop of LINK, or have come there."
  (sb-ext:atomic-incf (wire:answers-coming (ensure-answers link)) count)
  (sb-ext:atomic-incf (hub-answering (link-owner link)) count))

(defun ensure-share (link)
  "What LINK, which is to have a thread, has of the reserve. On its loop."
  (or (wire:link-share link)
      (setf (wire:link-share link)
            (link-share link (peer-entry-share (seat-entry (wire:link-seat link)))))))

(defun forget-waiting (link)
  "LINK has ended: of its calls those that wait for a thread need none any more."
  (when (wire:link-share link)
    (loop:leave-reserve (server-reserve (hub-server (link-owner link))) (wire:link-share link))))
