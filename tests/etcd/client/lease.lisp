;;;; Leases: what is put with one ends with it; kept alive, lost, revoked.

(in-package #:clgrpc.tests.etcd)

(defun lease-end (lease)
  "When LEASE ends unless it is renewed, by our clock."
  (clgrpc.etcd::lease-until-ns lease))

(defun await-time (ns)
  "Wait until NS, of our clock, is past."
  (wait-until (lambda () (< ns (base:monotonic-ns)))))

(store-test leases-end
  "What is put with a lease ends with it: when it is revoked, and when nobody renews it."
  (with-store (store)
    (let ((lease (etcd:grant-lease *etcd* 60 :keep-alive nil)))
      (is (= 60 (etcd:lease-seconds lease)))
      (etcd:put *etcd* "a" "1" :lease lease)
      (is (= (etcd:lease-id lease) (etcd:entry-lease (etcd:fetch *etcd* "a"))))
      (etcd:put *etcd* "a" "2" :keep-lease t)
      (is (= (etcd:lease-id lease) (etcd:entry-lease (etcd:fetch *etcd* "a"))))
      ;; another lease, and the same value
      (etcd:put *etcd* "a" nil :keep-value t)
      (is (= 0 (etcd:entry-lease (etcd:fetch *etcd* "a"))))
      (etcd:transact *etcd* :then (list (list :put "a" nil :keep-value t :lease lease)))
      (is (= (etcd:lease-id lease) (etcd:entry-lease (etcd:fetch *etcd* "a"))))
      (is (string= "2" (etcd:entry-text (etcd:fetch *etcd* "a"))))
      (signals etcd:invalid-request (etcd:put *etcd* "none" nil :keep-value t))
      (is (<= 30 (etcd:lease-seconds-left lease) 60))
      (is (= 60 (etcd:renew-lease lease)))
      (is-true (etcd:lease-alive-p lease))
      (etcd:revoke-lease lease)
      (is-false (etcd:lease-alive-p lease))
      (is (null (etcd:fetch *etcd* "a")))
      (is (null (etcd:lease-seconds-left lease)))
      (signals etcd:lease-not-found (etcd:renew-lease lease))
      (signals etcd:lease-not-found (etcd:put *etcd* "a" "1" :lease lease))
      (etcd:revoke-lease lease))
    (let ((lease (etcd:grant-lease *etcd* 1 :keep-alive nil)))
      (etcd:put *etcd* "b" "1" :lease lease)
      (eventually (null (etcd:fetch *etcd* "b")))
      (is-false (etcd:lease-alive-p lease)))))

(store-test renewals-share-a-stream
  "What many ask for goes on one stream, each gets its own answer, and after the end of the stream
another is opened."
  (with-store (store)
    (let ((leases (loop repeat 6 collect (etcd:grant-lease *etcd* 60 :keep-alive nil)))
          (etcd *etcd*) (opened 0))
      (flet ((renew-all ()
               (mapcar #'sb-thread:join-thread
                       (loop for lease in leases
                             append (loop repeat 3
                                          collect (let ((lease lease))
                                                    (in-thread
                                                      (handler-case (etcd:renew-lease lease)
                                                        (etcd:lease-not-found () :gone)))))))))
        (is (= 60 (etcd:renew-lease (first leases))))
        (with-replaced (('clgrpc.etcd::open-renewals
                         (lambda (function &rest arguments)
                           (incf opened)
                           (apply function arguments))))
          (etcd:revoke-lease (first leases))
          (is (equal (append '(:gone :gone :gone) (make-list 15 :initial-element 60))
                     (renew-all)))
          (is (= 0 opened))
          (let ((stream (clgrpc.etcd::renewal-stream-of etcd)))
            (clgrpc.etcd::end-renewals stream (clgrpc.etcd::renewal-stream-call stream)))
          (is (= 60 (etcd:renew-lease (second leases))))
          (is (= 1 opened)))))))

(store-test leases-are-renewed-together
  (with-store (store)
    (let ((leases (loop repeat 450 collect (etcd:grant-lease *etcd* 60 :keep-alive nil)))
          (asked 0))
      (etcd:revoke-lease (elt leases 7))
      (with-replaced (('clgrpc.etcd::ask-for-renewals
                       (lambda (function &rest arguments)
                         (incf asked)
                         (apply function arguments))))
        (is (equal (loop for i below 450 collect (if (= i 7) nil 60))
                   (etcd:renew-leases leases))))
      (is (= 3 asked))
      (is (null (etcd:renew-leases '()))))))

(test leases-are-kept-alive
  "A lease lasts beyond its time, through a restart of etcd, too, until its client is closed."
  (with-store (store)
    (let ((lease nil))
      (etcd:with-etcd (other (store-address store) :timeout +patience+ :backoff-maximum-seconds 0.2)
        (setf lease (etcd:grant-lease other 3))
        (etcd:put other "a" "1" :lease lease)
        (let ((end (lease-end lease)))
          (begin-store store)
          (await-time end)
          (is-true (etcd:lease-alive-p lease))
          (is-true (etcd:fetch *etcd* "a"))))
      (is-false (etcd:lease-alive-p lease)))))

(test leases-are-lost
  "Whoever keeps a lease is told that it may have ended: when somebody has revoked it, and when etcd
has not answered for its time."
  (with-store (store)
    (let* ((lost '())
           (note (lambda (condition) (push (type-of condition) lost)))
           (lease (etcd:grant-lease *etcd* 2 :on-loss note)))
      (etcd:with-etcd (other (store-address store) :timeout +patience+)
        (clgrpc.etcd::ask other #'etcdserverpb.lease:lease-revoke
                          (pb:make-lease-revoke-request :id (etcd:lease-id lease)) nil))
      (eventually lost)
      (is (equal '(etcd:lease-not-found) lost))
      (is-false (etcd:lease-alive-p lease))
      (setf lost '()
            lease (etcd:grant-lease *etcd* 1 :on-loss note))
      (support:signal-program (store-program store) sb-unix:sigstop)
      (unwind-protect
           (progn (eventually (not (etcd:lease-alive-p lease)))
                  (eventually lost)
                  (is (equal '(etcd:unavailable) lost)))
        (support:signal-program (store-program store) sb-unix:sigcont)))))

(store-test leases-by-number
  "Whoever knows the number of a lease can renew and end it, though another client was granted it."
  (with-store (store)
    (let* ((granted (etcd:grant-lease *etcd* 60 :keep-alive nil))
           (lease (etcd:lease-by-number *etcd* (etcd:lease-id granted))))
      (etcd:put *etcd* "a" "1" :lease lease)
      (is-false (etcd:lease-alive-p lease))
      (is (= 60 (etcd:renew-lease lease)))
      (is-true (etcd:lease-alive-p lease))
      (is (<= 30 (etcd:lease-seconds-left lease) 60))
      (etcd:revoke-lease lease)
      (is (null (etcd:fetch *etcd* "a")))
      (signals etcd:lease-not-found (etcd:renew-lease granted))
      (signals etcd:lease-not-found
        (etcd:renew-lease (etcd:lease-by-number *etcd* 123456))))))

(store-test leases-are-found-again
  "A lease is adopted by its number, keys are told, and numbers may be chosen; a lease that is lost
tells all who want to know."
  (with-store (store)
    (let ((lease (etcd:grant-lease *etcd* 10 :id 4711 :keep-alive nil)) (lost '()))
      (is (= 4711 (etcd:lease-id lease)))
      (signals etcd:lease-exists (etcd:grant-lease *etcd* 10 :id 4711))
      (etcd:put *etcd* "a" "1" :lease lease)
      (etcd:put *etcd* "b" "1" :lease 4711)
      (is (equalp (list (octets-of 97) (octets-of 98))
                  (sort (etcd:lease-keys lease) #'< :key (lambda (key) (aref key 0)))))
      (is (equal '(4711) (etcd:list-leases *etcd*)))
      (let ((again (etcd:adopt-lease *etcd* 4711
                                     :on-loss (lambda (condition)
                                                (push (type-of condition) lost)))))
        (is (= 10 (etcd:lease-seconds again)))
        (is-true (etcd:lease-alive-p again))
        (etcd:on-lease-loss again (fn (_condition)
                                    (error "This is a bug, which keeps nobody from hearing.")))
        (etcd:on-lease-loss again (lambda (condition) (push condition lost)))
        (etcd:revoke-lease lease)
        ;; as if its client had found out by itself
        (handler-case (etcd:renew-lease again)
          (etcd:lease-not-found (condition) (clgrpc.etcd::lose-lease again condition)))
        (eventually (= 2 (length lost)))
        (is (eq 'etcd:lease-not-found (second lost)))
        ;; at once, when it is lost already
        (etcd:on-lease-loss again (lambda (condition) (push condition lost)))
        (is (= 3 (length lost))))
      (signals etcd:lease-not-found (etcd:adopt-lease *etcd* 4711))
      (is (null (etcd:lease-keys lease))))))

(test renewals-that-get-no-answer
  "A renewal whose answer does not come is given up for another, three times at least in a lease's
time; one that ends without an answer says nothing of the lease; the loss is told when the time is
over."
  (with-stand-in (store other)
    (let* ((asked '()) (lost nil)
           (lease (etcd:grant-lease *etcd* 8 :on-loss (fn (_condition)
                                                        (setf lost (base:monotonic-ns))))))
      (with-hook (store name call next)
        (cond ((not (eq :lease-keep-alive name)) (next))
              ((push (base:monotonic-ns) asked)
               (if (evenp (length asked))
                   (rpc:finish call)
                   (silent-call call)))))
      (eventually lost)
      (is (<= 3 (length asked)))
      (is (<= (lease-end lease) lost))
      (is-false (etcd:lease-alive-p lease)))))

(test leases-that-are-ended-while-they-are-renewed
  "REVOKE-LEASE and CLOSE-ETCD do not wait for a renewal that gets no answer."
  (with-stand-in (store other)
    (let ((asked 0))
      (with-hook (store name call next)
        (cond ((eq :lease-keep-alive name)
               (incf asked)
               (silent-call call))
              (t (next))))
      (flet ((lease () (etcd:grant-lease *etcd* 60))
             (await-renewal (lease)
               (let ((before asked))
                 ;; as if a third of its time were over
                 (setf (clgrpc.etcd::renewal-next-ns (clgrpc.etcd::lease-renewal lease))
                       (base:monotonic-ns))
                 (loop:wake-job (clgrpc.etcd::keepalive-job (clgrpc.etcd::keepalive-of *etcd*)))
                 (eventually (< before asked)))))
        (let ((lease (lease)))
          (await-renewal lease)
          (is (> 5 (seconds-of (etcd:revoke-lease lease))))
          (is (null (etcd:lease-seconds-left lease))))
        (await-renewal (lease))
        (is (> 5 (seconds-of (etcd:close-etcd *etcd*))))))))

(test leases-share-a-stream-and-a-thread
  "However many leases a client has, they are renewed on one stream, which ends with the last."
  (with-stand-in (store other)
    (let ((streams '()) (leases '())
          (threads (length (sb-thread:list-all-threads))))
      (with-hook (store name call next)
        (when (eq :lease-keep-alive name) (push call streams))
        (next))
      (dotimes (i 100) (push (etcd:grant-lease *etcd* 2) leases))
      (let ((ends (mapcar #'lease-end leases)))
        (is-true (wait-until (lambda () (every (lambda (lease end) (< end (lease-end lease)))
                                               leases ends)))
                 "all were renewed"))
      (is (= 1 (length streams)))
      (is (every #'etcd:lease-alive-p leases))
      ;; the client's; the rest are the reserves', which have as many as run at once
      (is (= 1 (count "clgrpc etcd" (sb-thread:list-all-threads)
                      :key #'sb-thread:thread-name :test #'equal)))
      (is (> 20 (- (length (sb-thread:list-all-threads)) threads)))
      (mapc #'etcd:revoke-lease leases)
      (eventually (rpc:call-status (first streams))))))

(test one-lease-that-is-gone-is-no-other
  "Of leases on one stream the one that has ended is lost, and the others are kept."
  (with-stand-in (store other)
    (let* ((lost '())
           (leases (loop for i below 3
                         collect (let ((i i))
                                   (etcd:grant-lease *etcd* 2
                                                     :on-loss (lambda (condition)
                                                                (push (cons i (type-of condition))
                                                                      lost))))))
           (ends (mapcar #'lease-end leases)))
      (etcd:revoke-lease (etcd:lease-by-number other (etcd:lease-id (second leases))))
      (eventually lost)
      (is (equal '((1 . etcd:lease-not-found)) lost))
      (eventually (and (< (first ends) (lease-end (first leases)))
                       (< (third ends) (lease-end (third leases)))))
      (is (equal '(t nil t) (mapcar #'etcd:lease-alive-p leases))))))

(test renewals-do-not-shorten-a-lease
  "Of two renewals the later end counts, whichever is answered first."
  (with-stand-in (store other)
    (let ((lease (etcd:grant-lease *etcd* 60 :keep-alive nil)))
      (clgrpc.etcd::extend-lease lease (base:monotonic-ns) 100)
      (let ((end (lease-end lease)))
        (etcd:renew-lease lease)
        (is (= end (lease-end lease)))))))

(test leases-whose-grant-got-no-answer
  "A lease is asked for again if no answer comes, and is one: whatever was done of that is known by
the number. One of a number that is there already is not taken for it."
  (with-stand-in (store other)
    (let ((asked 0))
      (with-hook (store name request next)
        (cond ((not (eq :lease-grant name)) (next))
              ((= 1 (incf asked))
               (next)
               (status:fail :unavailable "etcdserver: leader changed"))
              (t (next))))
      (let ((lease (etcd:grant-lease *etcd* 30 :keep-alive nil)))
        (is (= 2 asked))
        (is (= 30 (etcd:lease-seconds lease)))
        (is-true (etcd:lease-alive-p lease))
        (is (equal (list (etcd:lease-id lease)) (etcd:list-leases other)))
        (signals etcd:lease-exists (etcd:grant-lease *etcd* 30 :id (etcd:lease-id lease)))
        (is (= 3 asked))))))

(test leases-of-a-chosen-number-whose-grant-got-no-answer
  "A lease whose number was chosen is not asked for again if no answer comes: one that is there then
may be somebody else's."
  (with-stand-in (store other)
    (let ((asked 0))
      (with-hook (store name request next)
        (cond ((eq :lease-grant name)
               (incf asked)
               (next)
               (status:fail :unavailable "etcdserver: leader changed"))
              (t (next))))
      (with-signalled (error etcd:unavailable (etcd:grant-lease *etcd* 30 :id 4711 :keep-alive nil))
        (is-true (etcd:etcd-error-perhaps-done-p error)))
      (is (= 1 asked))
      (signals etcd:lease-exists (etcd:grant-lease *etcd* 30 :id 4711 :keep-alive nil)))))

(test leases-whose-grant-was-slow
  "A lease that was granted late is renewed at once if much of its time may be over; if that fails
it is one as long as it has not ended for certain."
  (with-stand-in (store other)
    (let* ((late 0) (delay 0) (renewals 0) (renewal :answered)
           (etcd::*suspension* (lambda () (base:seconds-ns late))))
      (with-hook (store name call next)
        (case name
          (:lease-grant
           (incf late delay)
           (next))
          (:lease-keep-alive
           (incf renewals)
           (ecase renewal
             (:answered (next))
             (:unanswered (rpc:finish call) call)
             (:refused
              (mapc (lambda (number) (etcd:revoke-lease (etcd:lease-by-number other number)))
                    (etcd:list-leases other))
              (next))))
          (t (next))))
      (flet ((alive-p (seconds answer)
               (setf delay seconds renewal answer)
               ;; so that each renewal is a call
               (let ((stream (etcd::renewal-stream-of *etcd*)))
                 (etcd::end-renewals stream (etcd::renewal-stream-call stream)))
               (etcd:lease-alive-p (etcd:grant-lease *etcd* 60 :keep-alive nil))))
        (is-true (alive-p 0 :answered))
        (is (= 0 renewals))
        (is-true (alive-p 61 :answered))
        (is (= 1 renewals))
        (is-true (alive-p 30 :answered))
        (is-true (alive-p 30 :unanswered))
        (is (= 3 renewals))
        (signals etcd:unavailable (alive-p 61 :unanswered))
        (signals etcd:unavailable (alive-p 61 :refused))))))

(test cleanups-hold-up-no-renewal
  "What a lease's thread has to do besides it leaves when one of it fails, or when the time is over;
it goes on behind that one."
  (with-stand-in (store other)
    (let ((lease (etcd:grant-lease *etcd* 60 :keep-alive nil)) (done '()))
      (flet ((add (key fails)
               (clgrpc.etcd::add-cleanup lease key
                                         (fn (_seconds)
                                           (push key done)
                                           (when fails (error 'etcd:unavailable :text "not now")))))
             (done (seconds)
               (setf done '())
               (clgrpc.etcd::do-cleanups lease seconds)
               (reverse done)))
        (add "c" nil)
        (add "b" t)
        (add "a" nil)
        (is (equal '() (done 0)))
        (is (equal '("a" "b") (done +patience+)))
        (is (equal '("c" "b") (done +patience+)))
        (is (equal '("b") (done +patience+)))
        (clgrpc.etcd::forget-cleanup lease "b")
        (is (equal '() (done +patience+)))))))

(store-test suspended-machines-hold-no-leases
  "What was granted before a machine was suspended may have ended when it goes on, though the clock
of its loops stood still meanwhile."
  (with-store (store)
    (let ((lease (etcd:grant-lease *etcd* 60 :keep-alive nil)))
      (flet ((alive-p (seconds)
               (let ((etcd::*suspension* (lambda () (base:seconds-ns seconds))))
                 (etcd:lease-alive-p lease))))
        (is-true (alive-p 0))
        (is-true (alive-p 30))
        (is-false (alive-p 61))
        (let ((etcd::*suspension* (lambda () (base:seconds-ns 100))))
          (etcd:renew-lease lease)
          (is-true (etcd:lease-alive-p lease))
          (is (> (etcd::lease-end-ns lease) (base:monotonic-ns)) "by the loops' clock"))))))

(defun failing-once (name)
  "An interceptor of channels: the first call whose method has NAME fails with an error of the
user's, which cannot even be printed, and not with a status."
  (let ((failed nil))
    (lambda (method request options next)
      (when (and (search name (princ-to-string method)) (not (shiftf failed t)))
        (error 'support:unprintable))
      (funcall next request options))))

(defun call-with-failing-client (function store name)
  "Call FUNCTION with a client of STORE whose channel fails once at NAME, see FAILING-ONCE."
  (let ((etcd (etcd:make-etcd nil :channel (inproc:service-channel
                                            store :interceptors (list (failing-once name)))))
        (base:*log-function* nil))
    (unwind-protect (funcall function etcd)
      (etcd:close-etcd etcd))))

(test leases-are-kept-after-an-error-of-the-channel
  "An interceptor fails when the stream of the renewals is opened; then another is."
  (with-stand-in (store other)
    (call-with-failing-client
     (lambda (etcd)
       (let ((runs 0))
         (with-replaced (('clgrpc.etcd::keep-leases
                          (lambda (function keepalive)
                            (prog1 (funcall function keepalive) (incf runs)))))
           (let* ((lease (etcd:grant-lease etcd 60)) (end (lease-end lease)))
             ;; the job has seen the lease, and rests
             (eventually (plusp runs))
             (setf (clgrpc.etcd::renewal-next-ns (clgrpc.etcd::lease-renewal lease))
                   (base:monotonic-ns))
             (loop:wake-job (clgrpc.etcd::keepalive-job (clgrpc.etcd::keepalive-of etcd)))
             (eventually (< end (lease-end lease)))))))
     store "KeepAlive")))

(test watches-begin-after-an-error-of-the-channel
  (with-stand-in (store other)
    (call-with-failing-client
     (lambda (etcd)
       (let* ((heard 0) (watch (etcd:watch etcd (fn (changes _revision)
                                                  (incf heard (length changes)))
                                           :key "a" :timeout +patience+)))
         (etcd:put other "a" "1")
         (eventually (= 1 heard))
         (etcd:cancel-watch watch)))
     store "Watch")))
