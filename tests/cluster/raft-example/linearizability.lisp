;;;; Whether what clients have seen of a key can have happened one after the other, each operation
;;;; between its call and its return (Herlihy and Wing). The search is that of Wing and Gong, with
;;;; the states that led nowhere remembered (Lowe). An operation that nobody knows the end of may
;;;; happen at any time after its call, or never.

(in-package #:clgrpc.tests.raft-example)

(defstruct (operation (:copier nil))
  "What a client has done to a key."
  (kind nil)                            ; :read, :put, :append, :compare-and-set or :delete
  (value "")                            ; given
  (expected "")
  (seen nil)                            ; the value returned, nil if it is not known
  (changed t)                           ; what a :compare-and-set has returned
  (called 0)                            ; when, in seconds
  (returned nil))                       ; nil if it is not known whether it was done

(defun after-operation (operation state)
  "The value of the key after OPERATION, where it was STATE; and whether it was changed."
  (let ((value (operation-value operation)))
    (ecase (operation-kind operation)
      (:read (values state t))
      (:put (values value t))
      (:append (values (concatenate 'string state value) t))
      (:delete (values "" t))
      (:compare-and-set (if (string= state (operation-expected operation))
                            (values value t)
                            (values state nil))))))

(defun fits-p (operation after changed)
  (or (null (operation-returned operation))
      (and (string= after (operation-seen operation))
           (eq changed (operation-changed operation)))))

(defun linearizable-p (operations)
  "True if OPERATIONS, of one key, can have happened one after the other, from \"\" on."
  (let* ((operations (sort (copy-list operations) #'< :key #'operation-called))
         (count (length operations))
         (vector (coerce operations 'simple-vector))
         (known (loop for i below count
                      when (operation-returned (svref vector i)) sum (ash 1 i)))
         (dead (make-hash-table :test 'equal)))
    (labels ((first-return (done)
               (loop for i below count
                     unless (or (logbitp i done) (null (operation-returned (svref vector i))))
                       minimize (operation-returned (svref vector i))))
             (search-on (done state)
               (or (= known (logand known done))
                   (let ((key (cons done state)))
                     (unless (gethash key dead)
                       (or (some-next done state (first-return done))
                           (progn (setf (gethash key dead) t) nil))))))
             (some-next (done state end)
               (loop for i below count
                     for operation = (svref vector i)
                     while (<= (operation-called operation) end)
                     thereis (and (not (logbitp i done))
                                  (multiple-value-bind (after changed)
                                      (after-operation operation state)
                                    (and (fits-p operation after changed)
                                         (search-on (logior done (ash 1 i)) after)))))))
      (search-on 0 ""))))

(defun operations (&rest rows)
  "Operations from rows of KIND, a value, what was seen, and when it was called and returned."
  (loop for (kind value seen called returned) in rows
        collect (make-operation :kind kind :value value :seen seen :called called
                                :returned returned)))

(test histories-are-judged
  (flet ((good (&rest rows) (is-true (linearizable-p (apply #'operations rows)) "~S" rows))
         (bad (&rest rows) (is-false (linearizable-p (apply #'operations rows)) "~S" rows)))
    (good '(:put "1" "1" 0 1) '(:read "" "1" 2 3))
    (bad '(:put "1" "1" 0 1) '(:read "" "" 2 3))        ; an old value
    (good '(:put "1" "1" 0 3) '(:read "" "" 1 2))       ; at the same time
    (bad '(:put "1" "1" 0 9) '(:read "" "1" 1 2) '(:read "" "" 3 4)) ; back again
    (good '(:put "1" nil 0 nil) '(:read "" "" 1 2) '(:read "" "1" 3 4)) ; done late
    (good '(:put "1" nil 0 nil) '(:read "" "" 1 2))     ; never done
    (bad '(:append "1" "1" 0 1) '(:read "" "11" 2 3))   ; done twice
    (bad '(:put "1" nil 5 nil) '(:read "" "1" 1 2))     ; before it was called
    (bad '(:append "1" "1" 0 1) '(:append "2" "2" 2 3)))) ; lost
