;;;; Keepalive of a channel's links: the silence after which they send a PING, and the wait for its
;;;; answer (gRFC A8). The options give both times; a server's complaint makes the first longer,
;;;; LIMIT-CHANNEL-SILENCE makes both shorter. The code of wire sends the PINGs
;;;; (link-keepalive.lisp).

(in-package #:clgrpc.client)

(defconstant +longest-keepalive-ns+ (* 2 60 60 +ns-per-second+)
  "The longest silence before a PING, in nanoseconds, that results from complaints of servers: the
default of gRPC's servers (gRFC A8).")

(defun keepalive-ns (core)
  "The silence, in nanoseconds, after which new links of CORE's channel send a PING; 0 for never."
  (or (core-keepalive-ns core)
      (let ((seconds (options-keepalive-seconds (core-options core)))
            (limit (core-silence-ns core)))
        (if (zerop seconds)
            (or limit 0)
            (let ((ns (seconds-ns (max seconds
                                       (options-min-keepalive-seconds (core-options core))))))
              (if limit (min ns limit) ns))))))

(defun keepalive-timeout-ns (core)
  "How long, in nanoseconds, a server may be silent after a PING of a new link of CORE's channel."
  (let ((ns (seconds-ns (options-keepalive-timeout-seconds (core-options core)))))
    (if (core-silence-ns core)
        (min ns (core-silence-ns core))
        ns)))

(defun limit-silence (core byte-channel)
  "If links of CORE send PINGs, let BYTE-CHANNEL fail if its server does not acknowledge data within
the time for the answer to a PING (gRFC A18)."
  (when (plusp (keepalive-ns core))
    (loop:limit-silence (core-loop core) byte-channel
                        (options-keepalive-timeout-seconds (core-options core)))))

(defun ping-less (connection-set link)
  "Double the silence before PINGs of new links of the channels that use CONNECTION-SET, because the
server of LINK has complained of too many PINGs (gRFC A8)."
  (flet ((wait-longer (core)
           (setf (core-keepalive-ns core)
                 (max (keepalive-ns core)
                      (min +longest-keepalive-ns+ (* 2 (client-link-keepalive-ns link)))))))
    (wait-longer (connection-set-core connection-set))
    (map-cores #'wait-longer connection-set)))

(defun limit-link-silence (link limit-ns)
  "Let LINK send a PING after a silence of at most LIMIT-NS, and end if its server then stays silent
for LIMIT-NS again, or for a shorter limit of its own."
  (setf (client-link-keepalive-timeout-ns link)
        (min limit-ns (client-link-keepalive-timeout-ns link)))
  (when (or (zerop (client-link-keepalive-ns link)) (< limit-ns (client-link-keepalive-ns link)))
    (setf (client-link-keepalive-ns link) limit-ns)
    (wire:check-link link)))

(define-hot (begin-on-link :inline t) ((link client-link)) null
  "Count a call that begins on LINK. If LINK has had no calls and was silent for longer than its
keepalive, send a PING first (gRFC A8)."
  (incf (client-link-calls link))
  (when (shiftf (client-link-dormant link) nil) (wire:check-link link))
  nil)

(defun limit-links-silence (core)
  "Apply the limit of silence of CORE's channel to its links, and to later links of the connection
sets that it shares. A server that has complained of PINGs does not get PINGs more often."
  (unless (core-keepalive-ns core)
    (dolist (subchannel (core-subchannels core))
      (let* ((connection-set (subchannel-connection-set subchannel))
             (owner (connection-set-core connection-set))
             (limit-ns (core-silence-ns core)))
        (setf (core-silence-ns owner) (min limit-ns (or (core-silence-ns owner) limit-ns)))
        (dolist (link (all-links connection-set)) (limit-link-silence link limit-ns))))))
