;;;; Users' threads that are unwound within the client of etcd, as WITH-TIMEOUT, TERMINATE-THREAD
;;;; and SLIME do it: at each call of one of its functions, one after the other. What has not been
;;;; returned to its user is gone then; what was to end has ended, or ends when it is told so again.

(in-package #:clgrpc.tests.etcd)

(defun held-by (etcd)
  "What ETCD, a client, holds for its users: a list of numbers by name."
  (let ((background (clgrpc.etcd::etcd-background etcd))
        (multiplex (clgrpc.etcd::etcd-multiplex etcd))
        (keepalive (clgrpc.etcd::etcd-keepalive etcd)))
    (list :endings (length (clgrpc.etcd::etcd-endings etcd))
          :jobs (if background (length (loop::background-jobs background)) 0)
          :watches (if multiplex (hash-table-count (clgrpc.etcd::multiplex-watches multiplex)) 0)
          :leases (if keepalive (hash-table-count (clgrpc.etcd::keepalive-leases keepalive)) 0))))

(defun watches-of (store)
  "How many watches STORE, a stand-in, has."
  (let ((engine (stand-in-engine store)) (count 0))
    (memory::with-engine (engine)
      (loop for listener being the hash-keys of (memory::engine-listeners engine)
            do (when (typep listener 'memory::watching)
                 (incf count (hash-table-count (memory::watching-watches listener))))))
    count))

(defun unwind-within (store function
                      &key (after #'list) (least 5) (places '(#:clgrpc.etcd)) others)
  "Have FUNCTION be called, and unwound, at each call that it makes of a function of PLACES, and
see that nothing is left of it in the client *ETCD*, nor of watches in STORE, a stand-in, when AFTER
has been called. OTHERS is true if other clients have watches."
  (funcall function)
  (funcall after)
  ;; a store hears of the end of watches a little later
  (unless others
    (wait-until (lambda () (= (getf (held-by *etcd*) :watches) (watches-of store)))))
  (let* ((etcd *etcd*)                  ; of this thread only
         (client (held-by etcd)) (watches (watches-of store)) (left '())
         (points (support:interrupt-at-each-call
                  places
                  (lambda () (let ((*etcd* etcd)) (funcall function)))
                  (lambda (name)
                    (funcall after)
                    (unless (wait-until (lambda ()
                                          (and (equal client (held-by etcd))
                                               (= watches (watches-of store)))))
                      (let ((now (held-by etcd)))
                        (push (list name client watches now (watches-of store)) left)
                        (setf client now watches (watches-of store))))))))
    (is (<= least points))
    (is (null left) "~D of ~D calls leave something, before and after are~:{~%~(~A~) ~S ~S ~S ~S~}"
        (length left) points (reverse left))))

(test watches-of-unwound-threads-end
  "A watch that was not returned ends; one that is being cancelled ends, or can be cancelled again.
Another watch of the client hears all meanwhile."
  (with-stand-in (store other)
    (let* ((watches '()) (watch nil) (heard 0)
           (kept (etcd:watch *etcd* (fn (changes _revision) (incf heard (length changes)))
                             :key "kept")))
      (flet ((begin () (setf watch (etcd:watch *etcd* #'list :key "a")))
             (heard-p ()
               (setf heard 0)
               (etcd:put other "kept" "")
               (wait-until (lambda () (plusp heard)))))
        (unwind-within store
                       (lambda () (push (etcd:watch *etcd* #'list :key "a") watches))
                       :after (lambda () (mapc #'etcd:cancel-watch (shiftf watches '()))))
        (is-true (heard-p))
        (begin)
        (unwind-within store
                       (lambda () (etcd:cancel-watch watch))
                       :after (lambda ()
                                (when (etcd:watch-open-p watch) (etcd:cancel-watch watch))
                                (begin)))
        (is-true (heard-p))
        (is-true (etcd:watch-open-p kept))))))

(test leases-of-unwound-threads-are-not-kept
  "A lease that was not returned is not kept alive; one that is being revoked is not, or can be
revoked again. A renewal after one that was left has its own answer."
  (with-stand-in (store other)
    (let ((leases '()) (lease (etcd:grant-lease *etcd* 60)))
      (unwind-within store
                     (lambda () (push (etcd:grant-lease *etcd* 60) leases))
                     :after (lambda () (mapc #'etcd:revoke-lease (shiftf leases '()))))
      (unwind-within store
                     (lambda () (etcd:renew-lease lease))
                     :after (lambda ()
                              (is (= 60 (etcd:renew-lease lease :timeout +patience+)))))
      (unwind-within store
                     (lambda () (etcd:revoke-lease lease))
                     :after (lambda ()
                              (when (etcd:lease-alive-p lease) (etcd:revoke-lease lease))
                              (setf lease (etcd:grant-lease *etcd* 60)))))))

(test places-of-unwound-threads-are-left
  "A thread that is unwound as it asks for a lock, waits for it, has it or gives it up has it no
more: what keeps it alive, a lease of its own or the cleanup of another, is seen to."
  (with-stand-in (store other)
    (let* ((lease (etcd:grant-lease *etcd* 60)) (number 0) (locks '())
           (busy (etcd:acquire-lock other "busy")))
      (flet ((name () (format nil "lock-~D" (incf number)))
             (look-at-lease ()
               (clgrpc.etcd::do-cleanups lease 5) ; as after a renewal
               (is (null (clgrpc.etcd::lease-cleanups lease)))
               (is (null (clgrpc.etcd::lease-waiters lease)))
               (is (null (clgrpc.etcd::lease-loss-callbacks lease)))
               (is (null (etcd:lease-keys lease)))))
        (dolist (own '(t nil))
          (let ((options (if own '() (list :lease lease))))
            (unwind-within store
                           (lambda ()
                             (apply #'clgrpc.etcd::call-with-lock #'etcd:lock-key *etcd* (name)
                                    options))
                           :after #'look-at-lease)
            (unwind-within store
                           (lambda ()
                             (handler-case (apply #'etcd:acquire-lock *etcd* "busy" :timeout 0.05
                                                  options)
                               (etcd:etcd-error ())))
                           :after #'look-at-lease)
            (unwind-within store
                           (lambda ()
                             (push (apply #'etcd:campaign *etcd* (name) "me" options) locks))
                           :after (lambda ()
                                    (mapc #'etcd:resign (shiftf locks '()))
                                    (look-at-lease)))))
        (is-true (etcd:lock-held-p busy))))))

(test mirrors-of-unwound-threads-end
  "A mirror that was not returned ends; one that is being cancelled ends, or can be cancelled again;
one that is being refreshed tells what comes."
  (with-stand-in (store other)
    (let* ((mirrors '()) (mirror nil) (heard 0))
      (flet ((hear (kind items revision)
               (declare (ignore kind items revision))
               (incf heard)))
        (unwind-within store
                       (lambda () (push (etcd:mirror *etcd* #'hear :prefix "m/") mirrors))
                       :after (lambda () (mapc #'etcd:cancel-mirror (shiftf mirrors '()))))
        (setf mirror (etcd:mirror *etcd* #'hear :prefix "m/"))
        (unwind-within store
                       (lambda () (etcd:refresh-mirror mirror))
                       :after (lambda ()
                                (wait-until (lambda () (etcd:mirror-watch mirror)))
                                (setf heard 0)
                                (etcd:put other "m/a" "")
                                (eventually (plusp heard))))
        (unwind-within store
                       (lambda () (etcd:cancel-mirror mirror))
                       :after (lambda ()
                                (etcd:cancel-mirror mirror)
                                (setf mirror (etcd:mirror *etcd* #'hear :prefix "m/"))))))))

(test clients-that-unwound-threads-close-can-be-closed
  (with-stand-in (store other)
    (let ((client nil) (functions 0))
      (flet ((begin ()
               (setf client (etcd:make-etcd nil :channel (inproc:service-channel store)))
               (etcd:watch client #'list :key "a")
               (etcd:grant-lease client 60)
               (incf functions)
               (etcd:add-ending client (lambda () (decf functions)))))
        (begin)
        (unwind-within store
                       (lambda () (etcd:close-etcd client))
                       :others t
                       :after (lambda ()
                                (etcd:close-etcd client)
                                (is (zerop functions))
                                (is (equal '(:endings 0 :jobs 0 :watches 0 :leases 0)
                                           (held-by client)))
                                (begin)))
        (etcd:close-etcd client)))))
