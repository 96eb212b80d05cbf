;;;; Random requests to etcd and to the engine: both give the same answers, errors included, and
;;;; tell the same changes.

(in-package #:clgrpc.tests.memory)

(defvar *random* nil "What requests are made from.")

(defun chance (n) (random n *random*))

(defun one-of (&rest choices) (elt choices (chance (length choices))))

(defun random-key ()
  ;; no more than twelve: up to so many etcd sorts those that are the same as we do
  (one-of (octets-of) (octets-of 0) (octets-of 97) (octets-of 97) (octets-of 97 0) (octets-of 97 98)
          (octets-of 98) (octets-of 98 1) (octets-of 99) (octets-of 255) (octets-of 255 255)))

(defun random-end ()
  (one-of (octets-of) (octets-of) (octets-of 0) (octets-of 98) (octets-of 99) (octets-of 255)
          (octets-of 97 98)))

(defun random-value () (one-of (octets-of) (octets-of 1) (octets-of 2) (octets-of 2 1)))

(defun random-lease () (one-of 0 0 0 0 5 6 7))

(defun seldom () (zerop (chance 5)))

(defun random-revision (newest)
  "A revision, mostly one that there was."
  (one-of 0 0 0 0 (1+ (chance newest)) (max 0 (- newest (chance 10))) (+ newest (chance 3)) -1))

(defun random-bound (newest) (if (seldom) (chance (1+ newest)) 0))

(defun random-range (newest)
  (pb:make-range-request
   :key (random-key) :range-end (random-end) :revision (random-revision newest)
   :limit (one-of 0 0 0 1 2 5 -1) :sort-order (one-of :none :none :ascend :descend)
   :sort-target (one-of :key :key :version :create :mod :value)
   :keys-only (seldom) :count-only (seldom) :serializable (seldom)
   :min-mod-revision (random-bound newest) :max-mod-revision (random-bound newest)
   :min-create-revision (random-bound newest) :max-create-revision (random-bound newest)))

(defun random-put ()
  (pb:make-put-request :key (random-key) :value (random-value) :lease (random-lease)
                       :prev-kv (seldom) :ignore-value (seldom) :ignore-lease (seldom)))

(defun random-removal (&optional within-transaction)
  (pb:make-delete-range-request
   :key (random-key) :prev-kv (seldom)
   ;; etcd 3.4 ends itself if a transaction removes all to the end, and then is to leave the value
   ;; of what it has removed as it is
   :range-end (if within-transaction
                  (one-of (octets-of) (octets-of 98) (octets-of 99) (octets-of 97 98))
                  (random-end))))

(defun random-comparison (newest)
  (let ((key (random-key)) (end (if (seldom) (random-end) (octets-of)))
        (result (one-of :equal :not-equal :greater :less)) (number (chance (+ 2 newest))))
    (ecase (one-of :value :version :create :mod :lease :none)
      (:value (pb:make-compare :key key :range-end end :result result :target :value
                               :value (random-value)))
      (:version (pb:make-compare :key key :range-end end :result result :target :version
                                 :version (chance 3)))
      (:create (pb:make-compare :key key :range-end end :result result :target :create
                                :create-revision number))
      (:mod (pb:make-compare :key key :range-end end :result result :target :mod
                             :mod-revision number))
      (:lease (pb:make-compare :key key :range-end end :result result :target :lease
                               :lease (random-lease)))
      ;; the operand is of another target
      (:none (pb:make-compare :key key :result result :target (one-of :value :mod :lease)
                              :version 1)))))

(defun random-operation (newest depth)
  (ecase (one-of :put :put :range :removal :txn :none)
    (:put (pb:make-request-op :request-put (random-put)))
    (:range (pb:make-request-op :request-range (random-range newest)))
    (:removal (pb:make-request-op :request-delete-range (random-removal t)))
    (:txn (if (plusp depth)
              (pb:make-request-op :request-txn (random-transaction newest (1- depth)))
              (pb:make-request-op :request-put (random-put))))
    (:none (if (zerop (chance 10))
               (pb:make-request-op)
               (pb:make-request-op :request-range (random-range newest))))))

(defun random-transaction (newest depth)
  (flet ((some-of (most function)
           (loop repeat (chance (1+ most)) collect (funcall function))))
    (pb:make-txn-request
     :compare (some-of 2 (lambda () (random-comparison newest)))
     :success (some-of 3 (lambda () (random-operation newest depth)))
     :failure (some-of 3 (lambda () (random-operation newest depth))))))

(defun random-call (newest)
  (ecase (one-of :put :put :put :put :range :range :range :removal :txn :txn :txn :txn :compact
                 :grant :revoke :time)
    (:put (values #'kv:put (random-put)))
    (:range (values #'kv:range (random-range newest)))
    (:removal (values #'kv:delete-range (random-removal)))
    (:txn (values #'kv:txn (random-transaction newest 2)))
    (:compact (values #'kv:compact
                      (pb:make-compaction-request
                       :revision (if (seldom)
                                     (+ newest 1 (chance 3))
                                     (max 1 (- newest 20 (chance 40)))))))
    (:grant (values #'leases:lease-grant
                    (pb:make-lease-grant-request :id (one-of 5 6 7)
                                                 :ttl (one-of 5000 6000 9000000001))))
    (:revoke (if (seldom)
                 (values #'leases:lease-revoke (pb:make-lease-revoke-request :id (one-of 5 6 7)))
                 (values #'kv:put (random-put))))
    (:time (values #'leases:lease-time-to-live
                   (pb:make-lease-time-to-live-request :id (one-of 5 6 7) :keys t)))))

;;; What is compared

(defun comparable (response)
  "RESPONSE as text, without what depends on the store or the second."
  (when (typep response 'pb:lease-time-to-live-response)
    (when (plusp (pb:lease-time-to-live-response-ttl response))
      (setf (pb:lease-time-to-live-response-ttl response) 1))
    (setf (pb:lease-time-to-live-response-keys response)
          (sort (coerce (pb:lease-time-to-live-response-keys response) 'list)
                #'memory::before-p)))
  (loop for line in (uiop:split-string (protobuf:message-text response) :separator '(#\Newline))
        unless (some (lambda (word) (search word line)) '("cluster_id:" "member_id:" "raft_term:"))
          collect (string-trim " " line)))

(defun outcome (etcd stub request)
  "What STUB answers to REQUEST, comparable, and the revision of the store if that is known."
  (handler-case (let ((response (funcall stub (etcd:etcd-channel etcd) request :timeout 10)))
                  (comparable response))
    (status:rpc-error (error)
      (list (status:rpc-error-status error) (status:rpc-error-message error)))))

(defun revision-of (etcd)
  (nth-value 1 (etcd:fetch etcd "none")))

(defun changes-since (etcd revision start filters)
  "The changes of ETCD from REVISION on, of START and the keys behind it, comparable, up to the
entry \"last\"."
  (rpc:with-call (call (watches:watch (etcd:etcd-channel etcd) :open :timeout 20))
    (create call :key start :range-end (octets-of 0) :start-revision revision :prev-kv t
                 :filters filters)
    (loop for events = (map 'list #'comparable (pb:watch-response-events (rpc:receive call)))
          append events
          until (search "last" (format nil "~{~A~}" (first (last events)))))))

(defun compare-stores (real like seed steps)
  "Do STEPS random requests, of SEED, to both; return the first that differs, or nil."
  (let ((*random* (sb-ext:seed-random-state seed)))
    (dotimes (i steps)
      (multiple-value-bind (stub request) (random-call (revision-of like))
        (let ((a (outcome real stub request)) (b (outcome like stub request)))
          (unless (equal a b)
            (return (format nil "seed ~D, step ~D: ~A: etcd~%~{  ~A~%~}, the engine~%~{  ~A~%~}"
                            seed i request a b))))))))

(test random-requests-are-answered-as-by-etcd
  (let ((seed (1+ (random 1000000 (make-random-state t)))))
    (with-store (store)
      (let ((real *etcd*))
        (with-engine (engine)
          (loop for seed in (list 1 seed)
                do (let ((difference (compare-stores real *etcd* seed 500)))
                     (is (null difference) "~A" difference))
                   (is (= (revision-of real) (revision-of *etcd*))))
          (etcd:put real "last" "x")
          (let ((last (etcd:put *etcd* "last" "x")))
            (loop for (revision start filters)
                    in `((,(- last 10) ,(octets-of 0) ()) (,(- last 4) ,(octets-of 98) ())
                         (,(- last 10) ,(octets-of 97) (:nodelete)) (,last ,(octets-of 0) ()))
                  do (is (equal (changes-since real revision start filters)
                                (changes-since *etcd* revision start filters))))))))))
