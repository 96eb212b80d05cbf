;;;; The settings that the user of a client's call gives its stub: metadata, :wait-for-ready, an
;;;; :authority, limits for messages, values. Handlers keep the metadata that they send in the same
;;;; place. A call without settings has no INTENT (part.lisp).

(in-package #:clgrpc.rpc)

(define-hot (outgoing-metadata :inline t) ((call call)) list
  "The metadata that CALL's user sends with the headers, an alist. SETFable."
  (let ((intent (call-intent call)))
    (if intent (intent-metadata intent) '())))

(defun (setf outgoing-metadata) (metadata call)
  (setf (intent-metadata (ensure-intent call)) metadata))

(defun wait-for-ready (call)
  "The :wait-for-ready of CALL from its user: true, nil, or :unset. SETFable."
  (let ((intent (call-intent call)))
    (if intent (intent-wait-for-ready intent) :unset)))

(defun (setf wait-for-ready) (value call)
  (setf (intent-wait-for-ready (ensure-intent call)) value))

(define-hot (own-authority :inline t) ((call call)) (or null string)
  "The :authority that CALL's user has set for its requests, or nil."
  (let ((intent (call-intent call)))
    (and intent (intent-authority intent))))

(define-hot (own-limits :inline t) ((call call)) (values (or null index) (or null index))
  "Two values: the limits that CALL's user has set, in octets, for a message that CALL sends and for
one that it receives; each nil for the channel's limit."
  (let ((intent (call-intent call)))
    (if intent
        (values (intent-send-limit intent) (intent-receive-limit intent))
        (values nil nil))))

(defun check-authority (authority)
  "Return AUTHORITY if it can be the :authority of calls. Signal MISUSE if it has invalid characters
(RFC 3986)."
  (unless (and (stringp authority)
               (plusp (length authority))
               (every (lambda (character) (char< #\Space character #\Rubout)) authority))
    (misuse "~S cannot be the :authority of calls, which is ASCII without spaces; for a name in ~
             another alphabet give its ASCII form, xn--…" authority))
  authority)

(defun begin-values (call plist)
  "Give CALL, a new one, the values in PLIST, the :values of its stub."
  (unless (and (listp plist) (evenp (length plist)))
    (misuse ":values is a list of symbols and values by turns, not ~S." plist))
  ;; of a repeated key the first value counts
  (loop for (value key) on (reverse plist) by #'cddr
        do (setf (call-value call key) value)))

(defun begin-intent (call &key authority max-send-octets max-receive-octets values
                             &allow-other-keys)
  "Note the options of the stub of CALL, a new call: the :authority of its requests, the limits in
octets for a request and a response, each nil for the channel's, and its first values. Signal MISUSE
if one of them is invalid."
  (flet ((limit (name value)
           (unless (typep value '(or null (integer 0 2147483647)))
             (misuse "~S is a number of octets up to 2147483647, not ~S." name value))
           value))
    (when (or authority max-send-octets max-receive-octets)
      (let ((intent (ensure-intent call)))
        (setf (intent-authority intent) (and authority (check-authority authority))
              (intent-send-limit intent) (limit :max-send-octets max-send-octets)
              (intent-receive-limit intent) (limit :max-receive-octets max-receive-octets))))
    (when values (begin-values call values))))
