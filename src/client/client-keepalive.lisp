;;;; After how long a silence a channel's links ask whether their server is there, and how long they
;;;; wait for its answer (gRFC A8): what the options say, more once a server has complained, less
;;;; where somebody has to know sooner. The asking itself is wire's (link-keepalive.lisp).

(in-package #:clgrpc.client)

(defconstant +longest-keepalive-ns+ (* 2 60 60 +ns-per-second+)
  "No server has links wait longer, also those to other servers: it is what servers themselves wait
unless they are told otherwise (gRFC A8).")

(defun keepalive-ns (core)
  "After how long a silence new links of CORE's channel ask whether their server is there; 0 is
never."
  (or (core-keepalive-ns core)
      (let ((seconds (options-keepalive-seconds (core-options core)))
            (limit (core-silence-ns core)))
        (if (zerop seconds)
            (or limit 0)
            (let ((ns (seconds-ns (max seconds
                                       (options-min-keepalive-seconds (core-options core))))))
              (if limit (min ns limit) ns))))))

(defun patience-ns (core)
  "How long a server may be silent after new links of CORE's channel have asked whether it is
there."
  (let ((ns (seconds-ns (options-keepalive-timeout-seconds (core-options core)))))
    (if (core-silence-ns core)
        (min ns (core-silence-ns core))
        ns)))

(defun limit-silence (core byte-channel)
  "Where links of CORE ask whether their server is there, have BYTE-CHANNEL fail as well if it does
not acknowledge what we send in the time that it has for an answer (gRFC A18)."
  (when (plusp (keepalive-ns core))
    (loop:limit-silence (core-loop core) byte-channel
                        (options-keepalive-timeout-seconds (core-options core)))))

(defun ping-less (connection-set link)
  "The server of LINK finds that it asks too often whether it is alive: new links of the channels
that use CONNECTION-SET wait twice as long (gRFC A8)."
  (flet ((wait-longer (core)
           (setf (core-keepalive-ns core)
                 (max (keepalive-ns core)
                      (min +longest-keepalive-ns+ (* 2 (client-link-keepalive-ns link)))))))
    (wait-longer (connection-set-core connection-set))
    (map-cores #'wait-longer connection-set)))

(defun limit-links-silence (core)
  "The links that CORE's channel has keep its limit of silence, and those of connections that it
shares will. A server that has complained of PINGs is not asked more often."
  (unless (core-keepalive-ns core)
    (dolist (subchannel (core-subchannels core))
      (let* ((connection-set (subchannel-connection-set subchannel))
             (owner (connection-set-core connection-set))
             (limit-ns (core-silence-ns core)))
        (setf (core-silence-ns owner) (min limit-ns (or (core-silence-ns owner) limit-ns)))
        (dolist (link (all-links connection-set)) (wire:limit-silence link limit-ns))))))
