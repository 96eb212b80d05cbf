;;;; Tokens that are kept until they expire and fetched again before that, according to gRFC A83 and
;;;; A97.
;;;;
;;;;   time left until the token's end       result for an attempt
;;;;   more than 90 s                        the token
;;;;   30 to 90 s                            the token; a fetch begins
;;;;   less, or no token                     waits for the fetch, which begins if none is under way
;;;;   the same, soon after a failure        that failure, until the back-off is over
;;;;
;;;; For a token that lives less than 6 minutes, a twelfth of its life replaces the 30 s, and a
;;;; quarter the 90 s. So one fetch runs at a time, for any number of calls that wait, and no fetch
;;;; runs without calls. Each fetch runs on a new thread, which may wait, and which ends with the
;;;; fetch. Failures double the back-off from 1 s to 120 s, as in gRPC's document on connection
;;;; back-off. Whenever a fetch ends, even if its thread is ended by force, the attempts that wait
;;;; get a result.
;;;;
;;;; LOCK guards the state; no user's function runs while it is held. Times of tokens are of the
;;;; wall clock, as those inside tokens are; the back-off uses the loops' clock, which is monotonic.

(in-package #:clgrpc.token)

(defconstant +least-life-seconds+ 30
  "A token is no longer sent in this many seconds before its expiry, because clocks differ and
servers take time.")
(defconstant +refresh-seconds+ 60
  "The next token is fetched this many seconds before the present one may no longer be sent.")
(defconstant +most-token-octets+ 65536
  "A token of this many octets or more is refused: no server accepts such headers.")
(defconstant +first-pause-seconds+ 1)
(defconstant +most-pause-seconds+ 120)

(defstruct (kept-token (:constructor make-kept-token (text refresh-ns end-ns)) (:copier nil))
  "A token that is kept until it expires."
  (text "" :type string :read-only t)   ; the token itself
  (refresh-ns 0 :type integer :read-only t) ; the time from which another token is fetched
  (end-ns 0 :type integer :read-only t)) ; the time from which the token is not sent

(defmethod print-object ((kept kept-token) stream)
  (print-unreadable-object (kept stream :type t))) ; it is secret

(defclass token-credentials (credentials:call-credentials)
  ((lock :initform (sb-thread:make-mutex :name "clgrpc token")
         :reader token-lock)            ; guards the other slots
   (kept :initform nil :accessor token-kept) ; a KEPT-TOKEN, or nil
   ;; futures that the fetch will settle, as keys
   (waiting :initform (make-hash-table :test 'eq) :accessor token-waiting)
   (fetching :initform nil :accessor token-fetching) ; true while a fetch is under way
   (failure :initform nil :accessor token-failure) ; the RPC-ERROR of the last fetch, if it failed
   (retry-ns :initform 0 :accessor token-retry-ns) ; when, by WORLD-NOW, to fetch next
   ;; after failures
   (pauses :initform (loop:make-pauses +first-pause-seconds+ +most-pause-seconds+)
           :reader token-pauses))
  (:documentation "Call credentials that send a token from FETCH-TOKEN, a method of a subclass, as
`authorization: Bearer TOKEN`. The token is kept, and fetched again before it expires, by one fetch
at a time. All channels with the same credentials share the token. From any thread."))

(defgeneric fetch-token (credentials)
  (:documentation "Return a new token of CREDENTIALS, TOKEN-CREDENTIALS, a string of printable
ASCII, and the seconds, a real, for which it is valid. A third value, seconds, makes the next fetch
come earlier than the token's life requires. Define a method for your own subclass of
TOKEN-CREDENTIALS. The method is called on a thread of its own and may wait, but not without end. If
the method signals an RPC-ERROR, attempts that wait for the token fail with that error; use
:unavailable if another attempt may succeed. Any other error becomes :unauthenticated."))

(defun wall-now ()
  "The nanoseconds since 1970."
  (loop:unix-ns))

(defun keep-token (text seconds &optional refresh-seconds)
  "A KEPT-TOKEN of TEXT, which is valid for SECONDS from now, and fetched again in REFRESH-SECONDS
at the latest if that is not nil."
  (let* ((now (wall-now))
         (early (- seconds (min (+ +least-life-seconds+ +refresh-seconds+) (/ seconds 4)))))
    (make-kept-token text
                     (+ now (seconds-ns (if refresh-seconds (min early refresh-seconds) early)))
                     (+ now (seconds-ns (- seconds (min +least-life-seconds+ (/ seconds 12))))))))

(defun check-token (token seconds)
  "Return TOKEN, which is valid for SECONDS. Signal :unauthenticated if TOKEN cannot be a token, or
has expired."
  (flet ((refuse (text &rest arguments)
           (error (status:make-rpc-error :unauthenticated :ended-by :local :sent nil
                                         :message (apply #'format nil text arguments)))))
    (cond ((not (and (stringp token)
                     (< 0 (length token) +most-token-octets+)
                     (every (lambda (character) (char< #\Space character #\Rubout)) token)))
           (refuse "the fetched value is not a token, which has 1 to ~D characters of printable ~
                    ASCII"
                   (1- +most-token-octets+)))
          ((not (typep seconds '(real (0))))
           (refuse "the token has expired"))
          (t token))))

;;; The end of a fetch

(defun take-waiting (credentials)
  "Remove and return the futures that wait for CREDENTIALS, in any order. The caller must hold the
lock of CREDENTIALS."
  (alexandria:hash-table-keys (shiftf (token-waiting credentials) (make-hash-table :test 'eq))))

(defmethod loop:leave-future ((credentials token-credentials) future attached)
  (declare (ignore attached))           ; only this request has FUTURE
  (sb-thread:with-mutex ((token-lock credentials))
    (remhash future (token-waiting credentials))))

(defun take-token (credentials kept)
  "End the fetch of CREDENTIALS with KEPT, a KEPT-TOKEN, and give that to the attempts that wait."
  (dolist (future (sb-thread:with-mutex ((token-lock credentials))
                    (loop:forget-failures (token-pauses credentials))
                    (setf (token-kept credentials) kept
                          (token-failure credentials) nil
                          (token-fetching credentials) nil)
                    (take-waiting credentials)))
    (loop:resolve-future future (token-metadata (kept-token-text kept)))))

(defun take-failure (credentials error)
  "End the fetch of CREDENTIALS with ERROR, an RPC-ERROR. Attempts that wait fail with that error.
Later attempts fail with the same failure until the back-off is over, unless a valid token is kept."
  (log-event :warning :token-not-fetched :credentials credentials
                                         :reason (bounded-text error))
  (dolist (future (sb-thread:with-mutex ((token-lock credentials))
                    (setf (token-failure credentials) error
                          (token-retry-ns credentials)
                          (+ (loop:world-now)
                             (seconds-ns (loop:next-pause (token-pauses credentials))))
                          (token-fetching credentials) nil)
                    (take-waiting credentials)))
    (loop:reject-future future error)))

(defun fetched-token (credentials)
  "A new KEPT-TOKEN of CREDENTIALS; or nil, and the RPC-ERROR of the failure."
  (handler-case (multiple-value-bind (token seconds refresh-seconds) (fetch-token credentials)
                  (keep-token (check-token token seconds) seconds refresh-seconds))
    (status:rpc-error (error) (values nil error))
    (serious-condition (error)
      (values nil (status:make-rpc-error :unauthenticated :ended-by :local :sent nil
                                         :cause error :message (bounded-text error))))))

(defun fetch (credentials)
  "Fetch a token of CREDENTIALS. This runs on the fetch's own thread."
  (let ((kept nil)
        ;; the outcome if the thread is ended within FETCH-TOKEN
        (error (status:make-rpc-error :unavailable :ended-by :local :sent nil
                                      :message "the thread that fetched the token was ended")))
    (unwind-protect (setf (values kept error) (fetched-token credentials))
      (if kept
          (take-token credentials kept)
          (take-failure credentials error)))))

(defun begin-fetch (credentials)
  "Start a thread that fetches a token of CREDENTIALS, whose FETCHING is true."
  (handler-case (loop:start-thread (lambda () (fetch credentials)) "clgrpc token")
    (error (error)
      (take-failure credentials
                    (status:make-rpc-error :unavailable :ended-by :local :sent nil :cause error
                                           :message "no thread can fetch the token")))))

;;; The token for an attempt

(defun look-for-token (credentials now)
  "The result for an attempt from CREDENTIALS at NOW: the KEPT-TOKEN, the RPC-ERROR or the future.
The second value is true if the caller must begin a fetch."
  (sb-thread:with-mutex ((token-lock credentials))
    (let* ((kept (token-kept credentials))
           (failure (and (< (loop:world-now) (token-retry-ns credentials))
                         (token-failure credentials)))
           (good (and kept (< now (kept-token-end-ns kept))))
           (fresh (and good (< now (kept-token-refresh-ns kept))))
           (begins (not (or fresh failure (token-fetching credentials)))))
      (when begins (setf (token-fetching credentials) t))
      (values (cond (good kept)
                    (failure)
                    (t (let ((future (loop:make-future)))
                         (setf (gethash future (token-waiting credentials)) t)
                         future)))
              begins))))

(defmethod credentials:get-request-metadata ((credentials token-credentials) request)
  (declare (ignore request))
  (multiple-value-bind (found begins)
      (sb-sys:without-interrupts        ; the thread that sets FETCHING begins the fetch
        (multiple-value-bind (found begins) (look-for-token credentials (wall-now))
          (when begins (begin-fetch credentials))
          (values found begins)))
    (declare (ignore begins))
    (etypecase found
      (kept-token (token-metadata (kept-token-text found)))
      (condition (error found))
      (loop:future found))))
