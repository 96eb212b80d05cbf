;;;; The settings that the user of a client's call gives its stub: metadata, limits for messages,
;;;; values. Handlers keep the metadata that they send in the same place. A call without settings
;;;; has no OWN-OPTIONS (part.lisp). The client adds :wait-for-ready and an :authority.

(in-package #:clgrpc.rpc)

(define-hot (outgoing-metadata :inline t) ((call call)) list
  "The metadata that CALL's user sends with the headers, an alist. SETF changes them."
  (let ((own-options (call-own-options call)))
    (if own-options (own-options-metadata own-options) '())))

(defun (setf outgoing-metadata) (metadata call)
  (setf (own-options-metadata (ensure-own-options call)) metadata))

(define-hot (own-limits :inline t) ((call call)) (values (or null index) (or null index))
  "Two values: the limits in octets that CALL's user has set for a message that CALL sends and for
one that it receives; nil means the channel's limit."
  (if-let ((own-options (call-own-options call)))
    (values (own-options-send-limit own-options) (own-options-receive-limit own-options))
    (values nil nil)))

(defun begin-values (call plist)
  "Give CALL, a new call, the values in PLIST, the :values of its stub."
  (unless (and (listp plist) (evenp (length plist)))
    (misuse ":values is a list of symbols and values by turns, not ~S." plist))
  ;; for a repeated key the first value is used
  (loop for (value key) on (reverse plist) by #'cddr
        do (setf (call-value call key) value)))

(defun begin-own-options (call &key authority max-send-octets max-receive-octets values
                                  &allow-other-keys)
  "Note the options that the stub of CALL, a new call, was given: the limits in octets for a request
and a response, each nil if the channel's limit applies, and the first values of the call. Signal
MISUSE if one of these options, or the :authority of its requests, is invalid."
  (flet ((limit (name value)
           (unless (typep value '(or null (integer 0 2147483647)))
             (misuse "~S is a number of octets up to 2147483647, not ~S." name value))
           value))
    (when authority (check-authority authority))
    (when (or max-send-octets max-receive-octets)
      (let ((own-options (ensure-own-options call)))
        (setf (own-options-send-limit own-options) (limit :max-send-octets max-send-octets)
              (own-options-receive-limit own-options)
              (limit :max-receive-octets max-receive-octets))))
    (when values (begin-values call values))))
