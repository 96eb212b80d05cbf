;;;; How clients get leases, by a grant or by a number, and how leases end.

(in-package #:clgrpc.etcd)

(defun time-to-live (etcd id keys timeout)
  "etcd's data about the lease with the number ID and, if KEYS is true, about its keys."
  (ask etcd #'leases:lease-time-to-live
       (pb:make-lease-time-to-live-request :id id :keys keys) timeout :twice t))

(defun ask-for-lease (etcd seconds id end)
  "Ask ETCD for a lease of SECONDS with the number ID, until END. Return two values: the number of
the lease, which the store may have chosen itself, and its time in seconds. Without ID the lease has
a random number, and the request is repeated if no answer arrives: a lease with that number is then
the requested one. A lease with ID may belong to another client, so that request is not repeated."
  (let ((perhaps-done nil)
        (random (if (member id '(nil 0))
                    (1+ (random most-positive-fixnum (loop:new-random-state)))
                    nil)))
    (call-again
     end (and random t)
     (lambda ()
       (handler-case
           (let ((response (ask etcd #'leases:lease-grant
                                (pb:make-lease-grant-request :ttl seconds :id (or random id))
                                (loop:seconds-until end))))
             (values (pb:lease-grant-response-id response)
                     (max 0 (lease-time (pb:lease-grant-response-ttl response)))))
         (lease-exists (error)
           (unless (and random perhaps-done) (error error))
           (values random (granted-seconds
                           (time-to-live etcd random nil (loop:seconds-until end)))))
         (etcd-error (error)
           (when (etcd-error-perhaps-done-p error) (setf perhaps-done t))
           (error error)))))))

(defun freshen-lease (lease end-ns)
  "Renew LEASE once, until END-NS, if the answer that granted it arrived late, so that perhaps less
than two thirds of its time remain. Signal an ETCD-ERROR if LEASE may have ended."
  (when (< (* 3 (seconds-until lease)) (* 2 (lease-seconds lease)))
    (handler-case (renew-lease lease :timeout (loop:seconds-until end-ns))
      (lease-not-found ()
        (error 'unavailable :text "the answer to the request for a lease has arrived too late"))
      (etcd-error (error)
        (unless (lease-alive-p lease) (error error))))))

(define-keyword-function grant-lease (etcd seconds &key (keep-alive t) id on-loss timeout)
  "Return a new lease of at least SECONDS, an integer; etcd's own minimum is 2 by default. ID is the
lease's number, by default a random number. If KEEP-ALIVE is true, the default, the lease is renewed
until it is revoked or ETCD is closed. ON-LOSS is called with an ETCD-ERROR if etcd reports the end
of the lease, or if the lease may have ended because renewal has failed; see ON-LEASE-LOSS.
Signal an ETCD-ERROR, LEASE-EXISTS if another lease has this ID. If a request with ID gets no
answer, ETCD-ERROR-PERHAPS-DONE-P returns true if the lease may exist. From any thread."
  (check-type seconds (integer 1 9000000000))
  (let ((asked (lease-now-ns)) (end (loop:notice-end (or timeout (etcd-timeout etcd)))))
    (multiple-value-bind (number granted) (ask-for-lease etcd seconds id end)
      (let ((lease (%make-lease etcd number granted (time-after (seconds-ns granted) asked))))
        (freshen-lease lease end)
        (when on-loss (on-lease-loss lease on-loss))
        (when keep-alive (keep-lease lease))
        lease))))

(defun keep-lease (lease)
  "Keep LEASE alive, unless this thread is unwound meanwhile. In that case no program has the lease,
and it runs out."
  (let ((kept nil))
    (with-undoing (nil (unless kept (abandon-lease lease)))
      (begin-keeping lease)
      (setf kept t))))

(define-keyword-function adopt-lease (etcd id &key (keep-alive t) on-loss timeout)
  "Return the lease with the number ID that was granted before, for instance to this program before
it was restarted. KEEP-ALIVE and ON-LOSS are as for GRANT-LEASE. Signal LEASE-NOT-FOUND if the lease
has ended, or another ETCD-ERROR. From any thread."
  (let* ((asked (lease-now-ns))
         (response (time-to-live etcd id nil timeout))
         (seconds (lease-time (pb:lease-time-to-live-response-ttl response))))
    (when (minusp seconds)
      (error 'lease-not-found :text (format nil "the lease ~(~X~) has ended" id)))
    (let ((lease (%make-lease etcd id (granted-seconds response)
                              (time-after (seconds-ns seconds) asked))))
      (renew-lease lease :timeout timeout)
      (when on-loss (on-lease-loss lease on-loss))
      (when keep-alive (keep-lease lease))
      lease)))

(defun lease-by-number (etcd number)
  "Return the lease of NUMBER, which ENTRY-LEASE returned, for RENEW-LEASE, REVOKE-LEASE and
LEASE-SECONDS-LEFT. The lease may have been granted to this or another client. This client does not
keep the lease alive. LEASE-ALIVE-P is true of the lease after its first renewal by this client.
LEASE-SECONDS is 0, since only etcd knows its time. This makes no request. From any thread."
  (check-type number (signed-byte 64))
  (%make-lease etcd number 0 0))

(define-keyword-function revoke-lease (lease &key timeout)
  "End LEASE, and with it all entries that were put with it. Even if this signals an ETCD-ERROR,
LEASE is no longer renewed. A lease that has already ended does not cause an error. From any
thread."
  (stop-keeping lease)
  (handler-case (ask (lease-etcd lease) #'leases:lease-revoke
                     (pb:make-lease-revoke-request :id (lease-id lease)) timeout :twice t)
    (lease-not-found ()))
  nil)

(define-keyword-function lease-seconds-left (lease &key timeout)
  "Ask etcd how many seconds LEASE has left; nil if it has ended. Signal an ETCD-ERROR. From any
thread."
  (let ((seconds (pb:lease-time-to-live-response-ttl
                  (time-to-live (lease-etcd lease) (lease-id lease) nil timeout))))
    (if (minusp seconds) nil seconds)))

(define-keyword-function lease-keys (lease &key timeout)
  "Ask etcd for the keys of the entries that end with LEASE: a list of octets, empty if it has
ended. Signal an ETCD-ERROR. From any thread."
  (coerce (pb:lease-time-to-live-response-keys
           (time-to-live (lease-etcd lease) (lease-id lease) t timeout))
          'list))

(define-keyword-function list-leases (etcd &key timeout)
  "Return the numbers of all leases. Signal an ETCD-ERROR. From any thread."
  (map 'list #'pb:lease-status-id
       (pb:lease-leases-response-leases
        (ask etcd #'leases:lease-leases (pb:make-lease-leases-request) timeout
             :twice t))))
