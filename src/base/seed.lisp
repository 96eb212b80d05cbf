;;;; The seed of hash functions over data that peers send. It differs in every process, so that no
;;;; peer can choose keys that collide; nothing observable depends on it.

(in-package #:clgrpc.base)

(declaim (type (unsigned-byte 62) **hash-seed**))
(defglobal **hash-seed** 0)

(defun renew-hash-seed ()
  "Choose another seed. Done at the start of each process, also of a saved core, so a table keeps
the seed that its hashes were made with."
  (setf **hash-seed** (random (ash 1 62) (make-random-state t))))

(declaim (inline hash-seed))
(defun hash-seed ()
  "The seed, an (unsigned-byte 62)."
  **hash-seed**)

(renew-hash-seed)
(pushnew 'renew-hash-seed sb-ext:*init-hooks*)
