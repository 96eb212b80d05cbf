;;;; DEFINE-KERNEL, which makes a function of machine code.

(in-package #:clgrpc.kernel)

(defglobal **kernels** '())

(defun kernels ()
  "Return the list of the names of all kernels. Like leaves, kernels do not check their arguments."
  **kernels**)

(defun note-kernel (name)
  (pushnew name **kernels**))

(defconstant +octets-data+ (- (* sb-vm:vector-data-offset sb-vm:n-word-bytes)
                              sb-vm:other-pointer-lowtag)
  "The distance in octets from a vector's tagged pointer to the vector's data.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defconstant +kernels-p+ (if (member :x86-64 *features*) t nil)
    "True if this image has kernels."))

(defmacro with-kernel-parts (&body definitions)
  "Evaluate DEFINITIONS, which the bodies of kernels use, at load time and at compile time. On
processors without kernels do nothing, because SBCL's assembler lacks the instructions there."
  (when +kernels-p+
    `(eval-when (:compile-toplevel :load-toplevel :execute) ,@definitions)))

#+x86-64
(defmacro define-kernel (name arguments results (&key integers vectors vectors-256
                                                      vectors-512 masks shift)
                         documentation &body body)
  "Define NAME as a function in machine code.
  ARGUMENTS: names, each with a kind: :SAP, :COUNT, :WORD (64 bits) or :OCTETS, a vector, whose data
    begin +OCTETS-DATA+ octets after the address in the register.
  RESULTS: names of unsigned words, or (name bits).
  INTEGERS, VECTORS (of 16 octets), VECTORS-256 (of 32), VECTORS-512 (of 64), MASKS: more registers;
    SHIFT is the register from which instructions take the count of a shift.
BODY is assembler code, in which symbols are labels, and the names above are registers. BODY must
not change ARGUMENTS. The compiler knows a kernel when its file is loaded; for callers in the same
file the definition must be in an EVAL-WHEN."
  (flet ((argument-type (kind)
           (ecase kind
             (:sap 'sb-sys:system-area-pointer)
             (:count '(unsigned-byte 62))
             (:word '(unsigned-byte 64))
             (:octets '(simple-array (unsigned-byte 8) (*)))))
         (register (kind)
           (ecase kind
             (:sap 'sb-vm::sap-reg)
             ((:count :word) 'sb-vm::unsigned-reg)
             (:octets 'sb-vm::descriptor-reg)))
         (primitive (kind)
           (ecase kind
             (:sap 'sb-sys:system-area-pointer)
             ((:count :word) 'sb-vm::unsigned-num)
             (:octets 'sb-vm::simple-array-unsigned-byte-8))))
    `(progn
       (sb-c:defknown ,name ,(loop for (nil kind) in arguments collect (argument-type kind))
           (values ,@(loop for result in results
                           collect `(unsigned-byte ,(if (listp result) (second result) 62))))
           () :overwrite-fndb-silently t)
       (sb-c:define-vop (,name)
         (:translate ,name)
         (:policy :fast-safe)
         (:args ,@(loop for (argument kind) in arguments
                        collect `(,argument :scs (,(register kind)) :to (:result 99))))
         (:arg-types ,@(loop for (nil kind) in arguments collect (primitive kind)))
         (:results ,@(loop for result in results
                           collect `(,(if (listp result) (first result) result)
                                     :scs (sb-vm::unsigned-reg) :from :load)))
         (:result-types ,@(mapcar (constantly 'sb-vm::unsigned-num) results))
         ,@(when shift `((:temporary (:sc sb-vm::unsigned-reg :offset sb-vm::rcx-offset) ,shift)))
         ,@(when integers `((:temporary (:sc sb-vm::unsigned-reg) ,@integers)))
         ,@(when vectors `((:temporary (:sc sb-vm::int-sse-reg) ,@vectors)))
         ,@(when vectors-256 `((:temporary (:sc sb-vm::int-avx2-reg) ,@vectors-256)))
         (:generator 50
           (let (,@(loop for register in vectors-512
                         for i from 0 collect `(,register (register-512 ,i)))
                 ,@(loop for register in masks
                         for i from 0 collect `(,register (mask-register ,i))))
             (sb-assem:assemble () ,@body))))
       (note-kernel ',name)
       (setf (documentation ',name 'function) ,documentation))))

#-x86-64
(defmacro define-kernel (name arguments results options documentation &body body)
  "Define NAME as a function that does nothing, on processors without kernels."
  (declare (ignore options body))
  `(progn (declaim (inline ,name))
          (defun ,name ,(mapcar #'first arguments)
            ,documentation
            (declare (ignore ,@(mapcar #'first arguments)))
            (values ,@(mapcar (constantly 0) results)))))
