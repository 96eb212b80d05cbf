;;;; Disks of the simulator. A PLATTER is what outlives a process; the process has it by a HANDLE. A
;;;; crash of the machine leaves any prefix of what was written and not forced out, and the handle
;;;; of the process is good for nothing from then on. It may come in the middle of any operation.

(in-package #:clgrpc.tests.raft-example)

(define-condition disk-gone (error) ()
  (:report "The machine has crashed.")
  (:documentation "A process writes whose machine has crashed."))

(defstruct (platter (:copier nil))
  "A disk."
  (chance nil)                          ; decides what is left after a crash
  (rarity 0)                            ; an operation in so many crashes the machine; 0: none does
  (durable (make-octets 0))             ; outlives a crash
  (written '()))                        ; after that; octets, the last first

(defclass handle ()
  ((platter :initarg :platter :reader handle-platter)
   (crash :initarg :crash :reader handle-crash) ; called when an operation crashes the machine
   (gone :initform nil :accessor handle-gone)))

(defun all-octets (lists)
  (apply #'concatenate 'octets lists))

(defun crash-platter (handle)
  "The machine with HANDLE crashes."
  (unless (shiftf (handle-gone handle) t)
    (let* ((platter (handle-platter handle))
           (written (all-octets (reverse (shiftf (platter-written platter) '()))))
           (kept (sim:between (platter-chance platter) 0 (length written))))
      (setf (platter-durable platter)
            (all-octets (list (platter-durable platter) (subseq written 0 kept)))))))

(defun check-handle (handle)
  "Perhaps crash the machine of HANDLE; signal DISK-GONE if it has."
  (let ((platter (handle-platter handle)))
    (when (and (not (handle-gone handle))
               (plusp (platter-rarity platter))
               (sim:chance-p (platter-chance platter) (platter-rarity platter)))
      (crash-platter handle)
      (funcall (handle-crash handle)))
    (when (handle-gone handle) (error 'disk-gone))))

(defmethod example:disk-octets ((handle handle))
  (let ((platter (handle-platter handle)))
    (all-octets (cons (platter-durable platter) (reverse (platter-written platter))))))

(defmethod example:write-disk ((handle handle) octets)
  (when (handle-gone handle) (error 'disk-gone))
  (push octets (platter-written (handle-platter handle)))
  (check-handle handle))

(defmethod example:sync-disk ((handle handle))
  (check-handle handle)
  (setf (platter-durable (handle-platter handle)) (example:disk-octets handle)
        (platter-written (handle-platter handle)) '())
  (check-handle handle))

(defmethod example:replace-disk ((handle handle) octets)
  (check-handle handle)
  (setf (platter-durable (handle-platter handle)) octets
        (platter-written (handle-platter handle)) '())
  (check-handle handle))

(defmethod example:close-disk ((handle handle))
  (setf (handle-gone handle) t))

(test a-crash-leaves-a-prefix
  "Of what was forced out all, of the rest any part from its beginning."
  (let ((lengths '()))
    (dotimes (seed 200)
      (let* ((platter (make-platter :chance (sim:make-chance seed)))
             (handle (make-instance 'handle :platter platter :crash #'list)))
        (example:write-disk handle (coerce '(1 2) 'octets))
        (example:sync-disk handle)
        (example:write-disk handle (coerce '(3 4) 'octets))
        (example:write-disk handle (coerce '(5) 'octets))
        (crash-platter handle)
        (signals disk-gone (example:write-disk handle (coerce '(6) 'octets)))
        (let ((left (example:disk-octets handle)))
          (is (equalp left (subseq (coerce '(1 2 3 4 5) 'octets) 0 (length left))))
          (pushnew (length left) lengths))))
    (is (equal '(2 3 4 5) (sort lengths #'<)))))
