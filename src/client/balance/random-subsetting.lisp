;;;; The policy random_subsetting (gRFC A68): a child policy balances over only subsetSize of the
;;;; servers. These servers are chosen by rendezvous hashing with a seed of the balancer's own: the
;;;; servers with the lowest hashes. So when a server is added or removed at most one member of the
;;;; subset changes, and the subsets of many clients spread evenly over the servers. The hash is the
;;;; XXH64 of a server's first address.

(in-package #:clgrpc.balance)

(defstruct (subsetting (:copier nil))
  "The config of random_subsetting."
  (size 1 :type (integer 1) :read-only t) ; how many servers the child has
  (child nil :type config:policy-config :read-only t)) ; the child's policy

(defun parse-subsetting (object path)
  (let ((size (config:integer-field object "subsetSize" path :minimum 1)))
    (unless size
      (config:config-error (config:member-path path "subsetSize")
                           "must be given, an integer from 1"))
    (make-subsetting :size size :child (child-field object "childPolicy" path))))

(defclass random-subsetting (wrapper)
  ((seed :accessor subsetting-seed
         :documentation "The seed of the hashes, 64 bits."))
  (:documentation "The policy random_subsetting_experimental."))

(config:register-policy :random-subsetting
                        '("random_subsetting_experimental" "random_subsetting")
                        'random-subsetting 'parse-subsetting)

(defmethod initialize-instance :after ((balancer random-subsetting) &key)
  (setf (subsetting-seed balancer) (random (expt 2 64) (balancer-random balancer))))

(defun subset (backends size seed)
  "The SIZE BACKENDS with the lowest hashes under SEED, in the order of the hashes; all BACKENDS if
these are SIZE or fewer."
  (let ((distinct (remove-duplicates-by-key backends)))
    (if (<= (length distinct) size)
        distinct
        (let ((ranked (map 'vector
                           (lambda (backend)
                             (cons (xxh64 (string-octets
                                           (first-address (backend-addresses backend)))
                                          seed)
                                   backend))
                           distinct)))
          (map 'list #'cdr (subseq (sort ranked #'< :key #'car) 0 size))))))

(defun remove-duplicates-by-key (backends)
  "BACKENDS without duplicates."
  (let ((seen (make-hash-table :test #'equal)))
    (remove-if (lambda (backend) (shiftf (gethash (backend-key backend) seen) t)) backends)))

(defmethod update-backends ((balancer random-subsetting) backends config)
  (update-backends (wrapper-child balancer)
                   (subset backends (subsetting-size config) (subsetting-seed balancer))
                   (subsetting-child config)))
