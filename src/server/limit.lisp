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
    (unless (shiftf (rpc:link-ready link) t)
      (decf (hub-unready (link-owner link))))))

;;; Calls

(define-hot (too-many-calls-p :inline t) ((hub hub)) boolean
  (> (hub-open hub) (hub-max-open hub)))

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
