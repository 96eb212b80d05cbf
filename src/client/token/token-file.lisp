;;;; Tokens that another program, such as Kubernetes or an agent of SPIFFE, writes to a file and
;;;; renews there (gRFC A97).

(in-package #:clgrpc.token)

(defconstant +unknown-life-seconds+ 600
  "The time, in seconds, for which a token without an expiry is still sent if its file cannot be
read again.")

(defclass file-credentials (token-credentials)
  ((path :initarg :path :reader token-file-path) ; a pathname
   (seconds :initarg :seconds :reader token-file-seconds)) ; the time between readings, or nil
  (:documentation "Call credentials with a token from a file; see TOKEN-FILE."))

(define-printer (credentials file-credentials)
  "~A" (token-file-path credentials))

(define-keyword-function token-file (path &key seconds)
  "Return call credentials, for :call-credentials of a channel or stub, that send the token in the
file PATH, a pathname or its text, as `authorization: Bearer TOKEN` (gRFC A97). The file contains
only the token, 65,535 octets at most, perhaps with blanks and ends of lines around it. The file is
read when a token is first needed, on a thread of its own.
SECONDS  a real, 1 or more: the interval at which the file is read again. nil, the default, is for
         JSON Web Tokens: the file is read again 90 seconds before the token's expiry (`exp`), and
         a token without an expiry fails
An attempt whose token cannot be read fails with :unavailable, one whose token cannot be used with
:unauthenticated; the file is then read again after a back-off of 1 to 120 seconds. Signal MISUSE
for a wrong argument. From any thread."
  (unless (typep path '(or string pathname)) (misuse "The file of a token cannot be ~S." path))
  (unless (typep seconds '(or null (real 1 1000000)))
    (misuse ":SECONDS of a file of a token is 1 to 1000000, or nil, not ~S." seconds))
  (make-instance 'file-credentials
                 :path (if (stringp path) (uiop:parse-native-namestring path) path)
                 :seconds seconds))

(defun file-text (path)
  "The octets of the file at PATH as text, +MOST-TOKEN-OCTETS+ of them at most."
  (with-open-file (stream path :element-type 'octet)
    (let* ((octets (make-octets +most-token-octets+))
           (end (read-sequence octets stream)))
      (map 'string #'code-char (subseq octets 0 end)))))

(defun read-token (path)
  "The text of the file at PATH without blanks around it. Signal :unavailable if the file cannot be
read."
  (string-trim '(#\Space #\Tab #\Return #\Newline)
               (handler-case (file-text path)
                 (sb-ext:file-does-not-exist ()
                   (status:fail :unavailable
                                (format nil "the token in ~A cannot be read: this file is missing"
                                        path)))
                 (error (error)
                   (status:fail :unavailable
                                (format nil "the token in ~A cannot be read: ~A" path error))))))

(defmethod fetch-token ((credentials file-credentials))
  (let* ((path (token-file-path credentials))
         (token (read-token path))
         (seconds (token-file-seconds credentials))
         (expiry (web-token-expiry token)))
    (unless (or seconds expiry)
      (status:fail :unauthenticated
                   (format nil "the token in ~A is not a JSON Web Token with an expiry"
                           path)))
    (values token
            (cond (expiry (seconds-until expiry))
                  (t (+ seconds +unknown-life-seconds+)))
            seconds)))
