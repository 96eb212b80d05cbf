;;;; Tokens that the program has: a string, or a function that returns one.

(in-package #:clgrpc.token)

(defclass fixed-credentials (credentials:call-credentials)
  ((metadata :initarg :metadata :reader fixed-credentials-metadata)) ; an alist
  (:documentation "Call credentials whose metadata are always the same."))

(defmethod credentials:get-request-metadata ((credentials fixed-credentials) request)
  (declare (ignore request))
  (fixed-credentials-metadata credentials))

(define-printer (credentials fixed-credentials)
  "~{~A~^, ~}" (mapcar #'car (fixed-credentials-metadata credentials)))

(defun token-metadata (token)
  "The metadata that send TOKEN. Signal MISUSE, without showing TOKEN, if it is not a string."
  (unless (stringp token)
    (misuse "The function of BEARER-TOKEN returns a string, not a value of the type ~S."
            (type-of token)))
  (list (cons "authorization" (concatenate 'string "Bearer " token))))

(defun bearer-token (token)
  "Return call credentials, for :call-credentials of a channel or stub, that send `authorization:
Bearer TOKEN`. TOKEN is a string, or a function without arguments that returns one. The function is
called for each attempt of a call, and may wait; for the first attempt it runs in the caller's
thread. Signal MISUSE if TOKEN is neither. From any thread."
  (typecase token
    (string (make-instance 'fixed-credentials :metadata (token-metadata token)))
    (function (lambda (path)
                (declare (ignore path))
                (token-metadata (funcall token))))
    (t (misuse "The token of BEARER-TOKEN is a string, or a function that returns one, not a value ~
                of the type ~S." (type-of token)))))
